package control

import (
	"bytes"
	"testing"
)

// TestMemoryNeedsADaemonThatKnowsIt checks that a daemon of an earlier version refuses requests for the memory of agents,
// instead of taking it for records, and that it carries out all others.
func TestMemoryNeedsADaemonThatKnowsIt(t *testing.T) {
	for _, memory := range []bool{true, false} {
		for o, r := range map[op]any{
			opSessionRecord:     SessionRecordRequest{Dir: "/m", Lines: []string{"{}"}, Memory: memory},
			opSessionTranscript: SessionTranscriptRequest{Of: "/m", Memory: memory},
		} {
			line, err := encodeRequest(o, r)
			if err != nil || bytes.Contains(line, []byte(`"needs":["memory"]`)) != memory {
				t.Errorf("%s with memory %v: %s, %v", o, memory, line, err)
			}
			a, err := decodeRequest(line)
			if err != nil || len(a.ignored) > 0 {
				t.Errorf("%s is not understood: %v, %v", o, a.ignored, err)
			}
		}
	}
}
