// Package via describes a relay through which remotes are reached, and decides when it is used. A relay only saves time: whatever it does
// wrong, the git server itself is asked. A relay that keeps failing is asked rarely, so that it does not delay each request.
package via

import (
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// Silence is the time without a byte from the relay after which the git server is asked instead. A relay that works on an answer
	// sends a sign of life more often.
	Silence = 300 * time.Millisecond
	// Tick is the part of Silence after which the clock looks again.
	Tick = Silence / 10
	// Header is the header by which a client asks the relay for signs of life.
	Header = "Artifactfs-Relay"

	firstPause = time.Second
	maxPause   = time.Minute
	// trialTime is the time after which another request tries the relay, if the first one after a pause has neither failed nor succeeded.
	trialTime = 2 * time.Second
)

// ErrURL means that the URL of a relay is invalid.
var ErrURL = errors.New("URL of a relay must be http://HOST:PORT or https://HOST:PORT, without a user and a query")

// Relay is a relay. All remotes of a process share it, so that its failures are noticed once. Its methods may be called from any goroutine.
type Relay struct {
	url    *url.URL
	health health
}

// New returns the relay at a URL.
func New(raw string) (*Relay, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, ErrURL
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return &Relay{url: u}, nil
}

// URL returns the URL of the relay.
func (r *Relay) URL() string { return r.url.String() }

// For returns the URL of a remote at the relay: the remote's scheme, host and path follow the path of the relay.
func (r *Relay) For(remote *url.URL) *url.URL {
	u := *r.url
	u.Path += "/" + remote.Scheme + "/" + remote.Host + remote.Path
	u.RawPath = ""
	if remote.RawPath != "" {
		u.RawPath = r.url.EscapedPath() + "/" + remote.Scheme + "/" + remote.Host + remote.RawPath
	}
	u.RawQuery = remote.RawQuery
	return &u
}

// health decides whether a relay is used. After a failure it is not used for a pause, which doubles with each failure. After the pause,
// one request tries it again. The zero value is ready to use.
//
// Locks: mu is a leaf.
type health struct {
	mu    sync.Mutex
	pause time.Duration // 0: the last use has succeeded
	until time.Time     // end of the pause
	trial time.Time     // start of the request that tries the relay after a pause
}

// use reports whether the next request may use the relay. The caller must report the result with succeeded or failed.
func (h *health) use() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case h.pause == 0:
		return true
	case now.Before(h.until), now.Sub(h.trial) < trialTime:
		return false
	}
	h.trial = now
	return true
}

// succeeded records that the relay has answered.
func (h *health) succeeded() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pause, h.trial = 0, time.Time{}
}

// failed records a failure. Failures of requests that were sent before the pause began do not make it longer.
func (h *health) failed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if h.pause > 0 && now.Before(h.until) {
		return
	}
	h.pause = min(max(2*h.pause, firstPause), maxPause)
	h.until, h.trial = now.Add(h.pause), time.Time{}
}

// paused reports whether the relay is not used at the moment.
func (h *health) paused() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pause > 0 && time.Now().Before(h.until)
}
