package githttp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// headRate is the number of bytes for which a client gets one more second to send its commands.
const headRate = 64 << 10

// pace checks the average speed of a client, so that it cannot occupy a place for git for a long time with a few bytes.
// Only the time in which the server waits for the client counts.
type pace struct {
	grace  time.Duration
	rate   int64 // minimum speed in bytes per second
	bytes  int64
	waited time.Duration
}

// left returns the time for which the server still waits for the client.
func (p *pace) left() time.Duration {
	return p.grace + time.Duration(float64(p.bytes)/float64(p.rate)*float64(time.Second)) - p.waited
}

// add counts n bytes that were sent or received since the time since.
func (p *pace) add(n int, since time.Time) {
	p.bytes += int64(n)
	p.waited += time.Since(since)
}

// newPace returns the pace of a transfer that begins now.
func (l Limits) newPace() *pace { return &pace{grace: l.Grace, rate: l.Rate} }

// input is the body of a request. Reading it fails if the client sends nothing for too long, or the body is too large.
type input struct {
	body io.Reader
	rc   *http.ResponseController
	idle time.Duration
	// time by which the commands must have arrived; later by a second for each headRate bytes; zero after they have
	// arrived
	due   time.Time
	pace  *pace // speed of the client after the commands; nil before
	left  int64 // maximum number of bytes that may follow, uncompressed
	total int64
	slow  bool          // whether the client was too slow
	plain io.Reader     // reader of the uncompressed body
	ended chan struct{} // closed when the whole body was read

	mu      sync.Mutex // a goroutine that holds mu acquires no other lock
	stopped bool       // whether all reads must fail
}

// newInput returns the uncompressed body of the request.
func (e *exchange) newInput(limit int64) (*input, error) {
	in := &input{body: e.r.Body, rc: e.rc, idle: e.s.limits.Idle, left: limit, ended: make(chan struct{})}
	in.due = time.Now().Add(e.s.limits.Head)
	in.plain = rawInput{in}
	switch coding := e.r.Header.Get("Content-Encoding"); coding {
	case "", "identity":
	case "gzip", "x-gzip":
		unzip, err := gzip.NewReader(in.plain)
		if err != nil {
			return nil, refusal{http.StatusBadRequest, "Bad Request: the body is not compressed by gzip"}
		}
		in.plain = unzip
	default:
		return nil, refusal{http.StatusUnsupportedMediaType, "Unsupported Content-Encoding"}
	}
	if err := e.rc.EnableFullDuplex(); err != nil && e.r.ProtoMajor == 1 {
		return nil, err
	}
	return in, nil
}

// rawInput reads the body as the client has sent it, possibly compressed.
type rawInput struct{ in *input }

func (r rawInput) Read(p []byte) (int, error) {
	in := r.in
	begin := time.Now() // start of the time that pace.add measures
	if !in.extend() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := in.body.Read(p)
	if in.pace != nil {
		in.pace.add(n, begin)
		if err != nil && in.pace.left() <= 0 && timedOut(err) {
			in.slow, err = true, errSlow
		}
	}
	if err == io.EOF && !in.done() {
		close(in.ended)
		// Remove the deadline: from now on the connection is read only to notice that the client has closed it.
		_ = in.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// extend sets the time at which the next read fails. It returns false if all reads must fail.
func (in *input) extend() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	deadline := time.Now().Add(in.idle)
	if due := in.due.Add(time.Duration(in.total) * time.Second / headRate); !in.due.IsZero() && due.Before(deadline) {
		deadline = due
	}
	if in.pace != nil {
		deadline = earlier(deadline, in.pace)
	}
	if !in.stopped {
		_ = in.rc.SetReadDeadline(deadline)
	}
	return !in.stopped
}

// earlier returns deadline or, if that is before it, the time by which a client with the pace p must have sent or
// received something.
func earlier(deadline time.Time, p *pace) time.Time {
	if slow := time.Now().Add(p.left()); slow.Before(deadline) {
		return slow
	}
	return deadline
}

func (in *input) Read(p []byte) (int, error) {
	if in.left < 0 {
		return 0, errTooLarge
	}
	n, err := in.plain.Read(p)
	in.total += int64(n)
	if in.left -= int64(n); in.left < 0 {
		return n, errTooLarge
	}
	switch {
	case err == nil, err == io.EOF, errors.Is(err, errSlow):
	case timedOut(err):
		err = fmt.Errorf("%w: %w", errTime, err)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		err = refusal{http.StatusBadRequest, "Bad Request: the body is damaged"}
	default:
		err = fmt.Errorf("read request: %w", err)
	}
	return n, err
}

// why returns the reason why a transfer has failed with err. It may be another error, because package http cancels the
// context of a request whose body cannot be read in time.
func (in *input) why(err error) error {
	if in.slow && errors.Is(err, context.Canceled) {
		return errSlow
	}
	return err
}

// timedOut reports whether err means that a deadline has passed.
func timedOut(err error) bool {
	var waited interface{ Timeout() bool }
	return errors.As(err, &waited) && waited.Timeout()
}

// done reports whether the whole body was read.
func (in *input) done() bool {
	select {
	case <-in.ended:
		return true
	default:
		return false
	}
}

// unblock makes all reads fail, including those that wait for the client.
func (in *input) unblock() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.stopped = true
	if !in.done() {
		_ = in.rc.SetReadDeadline(time.Unix(1, 0))
	}
}

// maxRest is the maximum number of bytes at the end of a body that are read and ignored.
const maxRest = 4 << 20

// settle must be called when nothing reads the body any more. It reads up to maxRest bytes of the rest, because the
// kernel would discard the answer if the server closed the connection with unread bytes. If more is left, the
// connection is closed after the answer. The http package must not find the end of the body itself after both sides
// have sent data at the same time, because it then reads the connection twice at once.
func (in *input) settle(h http.Header) {
	if in.done() {
		return
	}
	_ = in.rc.SetReadDeadline(time.Now().Add(min(in.idle/10, time.Second/2)))
	rest := io.LimitReader(in.body, maxRest)
	if _, err := io.Copy(io.Discard, rest); err != nil || rest.(*io.LimitedReader).N == 0 {
		h.Set("Connection", "close")
	}
}

// output is the body of an answer. Writing it fails if the client does not read for too long, or the answer is too
// large.
//
// Locks: a goroutine that holds mu acquires no other lock, but waits for the client to read.
type output struct {
	e     *exchange
	kind  string // content type
	limit int64

	mu    sync.Mutex
	begun bool // whether the status was sent
	hold  bool // whether written bytes are kept in memory, so that another status can still be sent
	held  bytes.Buffer
	total int64
	pack  bool // whether the answer contains a pack
	pace  *pace
}

// packStart is the beginning of a pack (gitformat-pack(5)).
var packStart = []byte("PACK\x00\x00\x00\x02")

// maxHeld is the maximum number of bytes that an output keeps in memory.
const maxHeld = 1 << 20

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hold && o.held.Len()+len(p) <= maxHeld {
		return o.held.Write(p)
	}
	if err := o.releaseLocked(); err != nil {
		return 0, err
	}
	return len(p), o.send(p)
}

// release sends the bytes in memory. After that, written bytes are sent at once.
func (o *output) release() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.releaseLocked()
}

func (o *output) releaseLocked() error {
	o.hold = false
	if o.held.Len() == 0 {
		return nil
	}
	p := bytes.Clone(o.held.Bytes())
	o.held.Reset()
	return o.send(p)
}

func (o *output) send(p []byte) error {
	o.begin()
	if o.total += int64(len(p)); o.total > o.limit {
		return errTooLarge
	}
	o.pack = o.pack || bytes.Contains(p, packStart)
	if o.pace == nil {
		o.pace = o.e.s.limits.newPace()
	}
	begin := time.Now()
	_ = o.e.rc.SetWriteDeadline(earlier(begin.Add(o.e.s.limits.Idle), o.pace))
	_, err := o.e.w.Write(p)
	if err == nil {
		err = o.e.rc.Flush()
	}
	o.pace.add(len(p), begin)
	if err != nil {
		cause := errClient
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			cause = fmt.Errorf("%w: %v", errClient, err)
		}
		return cause
	}
	return nil
}

// begin sends the status of the answer, unless it was sent before.
func (o *output) begin() {
	if !o.begun {
		o.begun = true
		o.e.w.Header().Set("Content-Type", o.kind)
		o.e.w.WriteHeader(http.StatusOK)
	}
}

// replace completes the answer with the packets p, in place of those in memory. The client does not accept the answer
// if git has ended within a packet that was sent.
func (o *output) replace(p []byte) error {
	o.mu.Lock()
	o.held.Reset()
	o.mu.Unlock()
	_, err := o.Write(p)
	return o.end(err)
}

// end completes the answer. It returns err if another status can still be sent. Otherwise, if err is not nil, it breaks
// the connection, so that the client does not consider the answer complete, except if git itself has ended with an
// error.
func (o *output) end(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.e.rc.SetWriteDeadline(time.Now().Add(o.e.s.limits.Idle))
	if err == nil {
		if err = o.releaseLocked(); err == nil {
			o.begin()
			return nil
		}
	}
	if !o.begun {
		o.held.Reset()
		return err
	}
	if exited(err) { // the answer of git contains the error
		return nil
	}
	panic(http.ErrAbortHandler)
}
