// Package via describes a relay through which remotes are reached, and decides when the relay is used. A relay only
// saves time: if it fails in any way, the request is sent to the git server. A relay that fails repeatedly is tried
// rarely, so that it does not delay each request.
package via

import (
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// Silence is the time after which a request is sent to the git server instead, if no byte has arrived from the
	// relay. A relay that works on an answer sends signs of life at shorter intervals.
	Silence = 300 * time.Millisecond
	// Tick is the interval at which the passed time is compared with Silence.
	Tick = Silence / 10
	// Header is the name of the HTTP header with which a client asks the relay for signs of life.
	Header = "Artifactfs-Relay"

	firstPause = time.Second
	maxPause   = time.Minute
	// trialTime is the time after which another request may try the relay, if the first request after a pause has
	// neither failed nor succeeded.
	trialTime = 2 * time.Second
)

// ErrURL means that the URL of a relay is invalid.
var ErrURL = errors.New("URL of a relay must be http://HOST:PORT or https://HOST:PORT, without a user and a query")

// Relay is a relay. All remotes of a process share the Relay, so that each failure is noticed only once. Its methods
// may be called from any goroutine.
type Relay struct {
	url    *url.URL
	health health
}

// New returns the relay at a URL.
func New(raw string) (*Relay, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		return nil, ErrURL
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return &Relay{url: u}, nil
}

// URL returns the URL of the relay.
func (r *Relay) URL() string { return r.url.String() }

// For returns the URL under which the relay serves a remote: the path of the relay, followed by the remote's scheme,
// host and path.
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

// health decides whether a relay is used. After a failure, the relay is not used for a pause, which doubles with each
// failure. After the pause, one request tries the relay. The zero value is ready to use.
//
// Locks: while mu is held, no other lock is acquired.
type health struct {
	mu    sync.Mutex
	pause time.Duration // length of the last pause; 0 if the last use has succeeded
	until time.Time     // end of the pause
	trial time.Time     // start of the request that tries the relay after the pause
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

// failed records a failure, which starts a pause. Failures of requests that were sent before the current pause began do
// not extend the pause.
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

// paused reports whether the relay is currently not used.
func (h *health) paused() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pause > 0 && time.Now().Before(h.until)
}
