package via

import (
	"errors"
	"net/url"
	"testing"
	"time"
)

func TestURLs(t *testing.T) {
	for _, c := range []struct{ relay, remote, want string }{
		{"http://relay:9428", "https://git.example.org/team/app.git", "http://relay:9428/https/git.example.org/team/app.git"},
		{"https://relay/git/", "http://10.0.0.1:8080/a%2Fb?key=1", "https://relay/git/http/10.0.0.1:8080/a%2Fb?key=1"},
	} {
		r, err := New(c.relay)
		if err != nil {
			t.Fatal(err)
		}
		u, _ := url.Parse(c.remote)
		if got := r.For(u).String(); got != c.want {
			t.Errorf("%s at %s: got %s, want %s", c.remote, c.relay, got, c.want)
		}
	}
	for _, bad := range []string{"", "relay:9428", "ssh://relay", "http://", "http://user:pass@relay", "http://relay?x=1",
		"http://relay#x"} {
		if _, err := New(bad); err == nil {
			t.Errorf("relay %q was accepted", bad)
		}
	}
}

func TestFailuresPause(t *testing.T) {
	var h health
	if !h.use() {
		t.Fatal("a new relay is not used")
	}
	// Concurrent requests that fail together count as one failure.
	for range 10 {
		h.failed()
	}
	if h.use() || h.pause != firstPause {
		t.Errorf("after failures: used or a pause of %s, want %s", h.pause, firstPause)
	}
	for want := 2 * firstPause; want < 3*maxPause; want *= 2 {
		h.until = time.Now()
		if !h.use() || h.use() {
			t.Fatalf("after a pause of %s: want one request that tries the relay", h.pause)
		}
		if h.failed(); h.pause != min(want, maxPause) {
			t.Errorf("pause: got %s, want %s", h.pause, min(want, maxPause))
		}
	}
	h.until = time.Now()
	h.use()
	h.trial = time.Now().Add(-trialTime) // the trial request has neither failed nor succeeded
	if !h.use() {
		t.Error("no other request tries the relay")
	}
	h.succeeded()
	for range 2 {
		if !h.use() {
			t.Error("a relay that works again is not used")
		}
	}
}

// TestRouteCounts checks that a route counts the answers of the relay, and the requests that are sent to the git server
// instead. If the relay does not answer, other remotes do not use it either.
func TestRouteCounts(t *testing.T) {
	relay, err := New("http://relay:9428")
	if err != nil {
		t.Fatal(err)
	}
	r, other := NewRoute(relay), NewRoute(relay)
	if NewRoute(nil).Usage() != nil {
		t.Error("a remote without a relay has counters")
	}
	r.Use()
	r.Answered(false)
	r.Answered(true) // end of the same answer
	if got, want := *r.Usage(), (Usage{URL: "http://relay:9428", Answers: 1}); got != want {
		t.Errorf("after an answer: got %+v, want %+v", got, want)
	}
	r.Failed(errors.New("status 502"), true)
	if r.Use() || !other.Use() {
		t.Error("after an answer with an error: want that only this remote is sent to the git server")
	}
	got := *r.Usage()
	if got.FallThroughs != 2 || got.LastFailure != "status 502" || got.FailedAt.IsZero() || !got.Paused ||
		other.Usage().Paused {
		t.Errorf("after a failure and a request in the pause: got %+v", got)
	}
	r.Failed(errors.New("connection refused"), false)
	if other.Use() || other.Usage().FallThroughs != 1 || !other.Usage().Paused {
		t.Errorf("after a relay did not answer: got %+v for another remote, want a pause", *other.Usage())
	}
}
