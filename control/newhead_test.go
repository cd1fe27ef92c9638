package control

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestAnOldDaemonRefusesAnotherHead checks that a fork with another head names this field among those that the daemon
// must know, so that a daemon without it does not fork with the head of the checkpoint.
func TestAnOldDaemonRefusesAnotherHead(t *testing.T) {
	fork := ForkRequest{Of: "work", Mount: mountRequest("/m")}
	for want, head := range map[string]*NewHead{"[]": nil, `["head"]`: {Branch: "fix"}} {
		fork.Head = head
		line, err := encodeRequest(opFork, fork)
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Needs []string }
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if r.Needs == nil {
			r.Needs = []string{}
		}
		if got, _ := json.Marshal(r.Needs); string(got) != want {
			t.Errorf("needs of a fork with head %+v: got %s, want %s", head, got, want)
		}
		a, err := decodeRequest(line[:len(line)-1])
		if err != nil {
			t.Fatal(err)
		}
		got := a.args.(ForkRequest).Head
		if (got == nil) != (head == nil) || got != nil && *got != *head {
			t.Errorf("head of the decoded request: got %+v, want %+v", got, head)
		}
	}
}

// TestRefusalOfAnOldDaemonHasAHint checks the error of a daemon that does not know a field which the request needs.
func TestRefusalOfAnOldDaemonHasAHint(t *testing.T) {
	c := answering(t, `{"version":6,"error":{"code":2,"kind":"unsupported","verb":"read","object":"request",`+
		`"cause":"request needs field \"head\" of fork, which this daemon does not know"}}`)
	_, err := c.Fork(t.Context(), ForkRequest{Of: "work", Mount: mountRequest("/m"), Head: &NewHead{Branch: "fix"}}, nil)
	if e := AsError(err); e == nil || e.ErrorCode() != CodeUnsupported || !strings.Contains(e.Hint, "daemon --upgrade") {
		t.Errorf("fork with another head at an old daemon: got %+v", e)
	}
}

func TestHeadOfAForkIsChecked(t *testing.T) {
	for _, h := range []*NewHead{nil, {Branch: "fix"}, {Branch: "a/b", Reset: true}, {Detach: true}} {
		if err := h.validate(); err != nil {
			t.Errorf("head %+v is refused: %v", h, err)
		}
	}
	for _, h := range []*NewHead{{}, {Branch: "-x"}, {Branch: "HEAD"}, {Branch: "a..b"}, {Branch: "../../config"},
		{Branch: "a.lock"}, {Branch: "fix", Detach: true}, {Reset: true}, {Detach: true, Reset: true}, {Branch: "a\nb"}} {
		if h.validate() == nil {
			t.Errorf("head %+v is accepted", h)
		}
	}
	r := ForkRequest{Of: "work", Mount: mountRequest("/m"), Head: &NewHead{Branch: "fix"}}
	r.Mount.ReadOnly = true
	if r.validate() == nil {
		t.Error("another head of a read-only mount is accepted")
	}
}
