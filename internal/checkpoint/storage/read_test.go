package storage

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// What is read ends where it ends, or at the bound; what breaks off is no end.
func TestReadMost(t *testing.T) {
	const text = "some bytes"
	for _, most := range []int64{3, int64(len(text)), int64(len(text)) + 1, pieceBytes + 1, pieceBytes + 2} {
		want := text[:min(int64(len(text)), most)]
		for name, reader := range map[string]io.Reader{"at once": strings.NewReader(text), "one by one": iotest.OneByteReader(strings.NewReader(text)), "with its end": iotest.DataErrReader(strings.NewReader(text))} {
			if got, err := readMost(reader, most); err != nil || !bytes.Equal(got, []byte(want)) {
				t.Errorf("%s, at most %d: %q, %v", name, most, got, err)
			}
		}
	}
	for _, most := range []int64{20, pieceBytes + 2} {
		broken := io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF))
		if got, err := readMost(broken, most); err == nil {
			t.Errorf("what breaks off ends with %q", got)
		}
	}
}
