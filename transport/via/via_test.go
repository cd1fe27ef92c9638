package via

import (
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
	for _, bad := range []string{"", "relay:9428", "ssh://relay", "http://", "http://user:pass@relay", "http://relay?x=1", "http://relay#x"} {
		if _, err := New(bad); err == nil {
			t.Errorf("relay %q was accepted", bad)
		}
	}
}

func TestFailuresPause(t *testing.T) {
	var h Health
	if !h.Use() {
		t.Fatal("a new relay is not used")
	}
	// Requests in progress fail together; this counts once.
	for range 10 {
		h.Failed()
	}
	if h.Use() || h.pause != firstPause {
		t.Errorf("after failures: used or a pause of %s, want %s", h.pause, firstPause)
	}
	for want := 2 * firstPause; want < 3*maxPause; want *= 2 {
		h.until = time.Now()
		if !h.Use() || h.Use() {
			t.Fatalf("after a pause of %s: want one request that tries the relay", h.pause)
		}
		if h.Failed(); h.pause != min(want, maxPause) {
			t.Errorf("pause: got %s, want %s", h.pause, min(want, maxPause))
		}
	}
	h.until = time.Now()
	h.Use()
	h.trial = time.Now().Add(-trialTime) // that request has neither failed nor succeeded
	if !h.Use() {
		t.Error("no other request tries the relay")
	}
	h.Succeeded()
	for range 2 {
		if !h.Use() {
			t.Error("a relay that works again is not used")
		}
	}
}
