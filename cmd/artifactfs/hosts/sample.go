package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

const (
	// maximum time of a request; a host that takes longer counts as a host that does not answer
	answerTime = 5 * time.Second
	atOnce     = 64       // number of hosts that are asked at the same time
	maxAnswer  = 64 << 20 // maximum size of an answer in bytes
)

// Host is the state of the daemon of one host. Rates are averages since the previous sample; they are nil in the first
// one.
type Host struct {
	Target string `json:"host"`
	Up     bool   `json:"up"`              // whether the daemon answered
	Error  string `json:"error,omitempty"` // reason why the daemon did not answer

	Version  string `json:"version,omitempty"`
	Mounts   int64  `json:"mounts"`   // number of mounts, including those that are degraded
	Degraded int64  `json:"degraded"` // mounts whose last request to the remote failed
	Failed   int64  `json:"failed"`   // mounts that were detached because of a failure
	Rates    *Rates `json:"rates"`    // null if there was no previous sample

	// bytes that this host has received from remotes since the daemon's worker started
	ReceivedBytes   int64 `json:"received_bytes"`
	PendingSessions int64 `json:"pending_sessions"` // sessions with refs that are not on the session remote
	// longest time in seconds for which refs of a session have been missing on the session remote
	PendingSeconds float64 `json:"pending_seconds"`
	MemoryBytes    int64   `json:"memory_bytes"` // memory of the worker in bytes, without memory that maps files
	// requests of programs that failed because of this host or the remote
	Errors int64 `json:"errors"`

	counters counters
}

// Rates are averages per second between two samples.
type Rates struct {
	Requests       float64 `json:"requests_per_second"`        // requests of the kernel to the daemon
	RemoteRequests float64 `json:"remote_requests_per_second"` // requests to remotes
	ReceivedBytes  float64 `json:"received_bytes_per_second"`
	Processor      float64 `json:"processor"` // seconds of processor time per second
	// fraction of the kernel's requests that needed no remote; null if there was no request
	Hits *float64 `json:"hit_ratio"`
}

// counters are the counters of a daemon, from which rates are computed.
type counters struct {
	at                                      time.Time
	requests, fetched, remote, bytes, procs float64
	// time at which the worker started; the counters of a new worker start at zero
	started float64
}

// Sampler reads the metrics of hosts, and remembers the previous sample of each host. A Sampler whose Token is empty
// sends no token.
type Sampler struct {
	Token string // token that is sent to every host with a port; "": no token

	before map[string]counters // previous sample of each target
}

// Sample reads the metrics of all targets concurrently. The result has a Host for every target, in the same order.
func (s *Sampler) Sample(ctx context.Context, targets []string) []Host {
	all := make([]Host, len(targets))
	turns := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i, target := range targets {
		running.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			all[i] = s.read(ctx, target)
		})
	}
	running.Wait()
	before := s.before
	s.before = make(map[string]counters, len(all))
	for i := range all {
		h := &all[i]
		if !h.Up {
			continue
		}
		s.before[h.Target] = h.counters
		if last, known := before[h.Target]; known {
			h.Rates = h.counters.since(last)
		}
	}
	return all
}

// since returns the rates between two samples.
func (c counters) since(last counters) *Rates {
	if last.started != c.started {
		// The samples are of different workers, and the counters of the new one started at zero.
		last = counters{at: last.at}
	}
	seconds := c.at.Sub(last.at).Seconds()
	if seconds <= 0 {
		return nil
	}
	rate := func(now, before float64) float64 { return max(0, now-before) / seconds }
	r := &Rates{
		Requests: rate(c.requests, last.requests), RemoteRequests: rate(c.remote, last.remote),
		ReceivedBytes: rate(c.bytes, last.bytes), Processor: rate(c.procs, last.procs),
	}
	if requests := c.requests - last.requests; requests > 0 {
		hits := 1 - max(0, c.fetched-last.fetched)/requests
		r.Hits = &hits
	}
	return r
}

// read reads the metrics of one target.
func (s *Sampler) read(ctx context.Context, target string) Host {
	h := Host{Target: target}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := s.get(ctx, target)
	if err == nil {
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
			err = fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
		}
	}
	if err == nil {
		h.counters.at = time.Now()
		err = metrics.Read(io.LimitReader(answer.Body, maxAnswer), h.add)
	}
	if err == nil && h.counters.started == 0 {
		err = errors.New("answer contains no metrics of artifactfs")
	}
	if err != nil {
		return Host{Target: target, Error: reason(err)}
	}
	h.Up = true
	return h
}

// reason returns the text of an error of an HTTP request, without the method and the address.
func reason(err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within %s", answerTime)
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// get requests the metrics of a target. The caller must close the body.
func (s *Sampler) get(ctx context.Context, target string) (*http.Response, error) {
	url, transport := "http://"+target+"/metrics", &http.Transport{DisableKeepAlives: true}
	path, isUnix := strings.CutPrefix(target, unixPrefix)
	if isUnix {
		url = "http://metrics/metrics"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if s.Token != "" && !isUnix {
		request.Header.Set("Authorization", "Bearer "+s.Token)
	}
	// A redirect would send the token to another host.
	client := &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return client.Do(request)
}

// add adds one value of the metrics to h.
func (h *Host) add(name string, labels map[string]string, v float64) {
	switch name {
	case "artifactfs_build_info":
		h.Version = labels["version"]
	case "artifactfs_mounts":
		switch labels["state"] {
		case "failed":
			h.Failed += int64(v)
			return
		case "degraded":
			h.Degraded += int64(v)
		}
		h.Mounts += int64(v)
	case "artifactfs_session_pending_refs":
		if v > 0 {
			h.PendingSessions++
		}
	case "artifactfs_session_pending_seconds":
		h.PendingSeconds = max(h.PendingSeconds, v)
	case "artifactfs_anonymous_memory_bytes":
		h.MemoryBytes = int64(v)
	case "artifactfs_mount_operation_errors_total":
		// EACCES does not count, because it is also the result if another session has locked the file.
		if labels["error"] != "EACCES" {
			h.Errors += int64(v)
		}
	case "artifactfs_operation_duration_seconds_count":
		h.counters.requests += v
	case "artifactfs_mount_operations_fetched_total":
		h.counters.fetched += v
	case "artifactfs_remote_requests_total":
		h.counters.remote += v
	case "artifactfs_remote_received_bytes_total":
		h.counters.bytes += v
		h.ReceivedBytes += int64(v)
	case "process_cpu_seconds_total":
		h.counters.procs = v
	case "process_start_time_seconds":
		h.counters.started = v
	}
}
