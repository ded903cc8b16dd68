package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/concertina-dev/concertina/internal/agent/wire"
)

// FuzzMessage decodes what a program, or an agent, might say. What is taken can be said again.
func FuzzMessage(f *testing.F) {
	for _, line := range []string{
		``, `{}`, `[]`, `"hello"`, `{"type":"hello","protocol":2,"localRank":0}`, `{"type":"join"}`, `{"type":"parked","step":5}`,
		`{"type":"snapshot","step":5,"file":"5.part","bytes":12}`, `{"type":"snapshot","step":5,"error":"full"}`,
		`{"type":"aborted","step":18446744073709551615}`, `{"type":"fault","step":1,"message":"ValueError"}`, `{"type":"finished"}`,
		`{"type":"want","parts":["d1.4.0123456789abcdef"],"ranges":[[[0,5],[7,4611686018427387904]]]}`,
		`{"type":"progress","totalSteps":100,"metrics":{"loss":1e308}}`, `{"type":"world","round":1}`, `{"type":"error","message":"no"}`,
		"{\"type\":\"fault\",\"message\":\"\xff\"}",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) > wire.MaxLine {
			t.Skip("longer lines are not read")
		}
		for side, decode := range map[string]func([]byte) (any, error){"program": wire.FromProgram, "agent": wire.FromAgent} {
			message, err := decode(line)
			if err != nil {
				continue
			}
			if message == nil {
				t.Errorf("%s: %q is nothing", side, line)
			}
			if _, err := json.Marshal(message); err != nil {
				t.Errorf("%s: %q is %+v, which cannot be said: %v", side, line, message, err)
			}
		}
	})
}
