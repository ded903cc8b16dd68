package deviceerror

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// The errors after which SDKs look at a device are those for which the operator waits.
func TestErrorsOfDevices(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "device_errors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct{ OfDevices, Others []string }
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors.OfDevices) == 0 || len(vectors.Others) == 0 {
		t.Fatalf("device_errors.json has %d and %d lines: %v", len(vectors.OfDevices), len(vectors.Others), err)
	}
	for _, line := range vectors.OfDevices {
		if !Is("Traceback (most recent call last):\n" + line) {
			t.Errorf("%q is one of a device", line)
		}
	}
	for _, line := range vectors.Others {
		if Is("CUDA error: of before\n" + line) {
			t.Errorf("%q is none of a device", line)
		}
	}
}
