// Package webhooks delivers events to URLs of users.
//
// A delivery is a record, so it survives the process. Each node plans deliveries of new events and makes those that are
// due; while an attempt is made, the delivery is not due for other nodes. A node that dies during an attempt leaves a
// delivery that another node makes again: an event arrives at least once, and its id tells the receiver whether it has
// the event already. Events may arrive in another order than they happened.
//
// Requests have the form of Standard Webhooks (standardwebhooks.com), for which there are libraries in most languages:
//
//	webhook-id         the same for every attempt
//	webhook-timestamp  time of the attempt, in seconds since 1970
//	webhook-signature  v1,BASE64 of HMAC-SHA256 over "ID.TIMESTAMP.BODY"
//
// An attempt succeeds if the answer has a status of 200 to 299 within 10 s. Redirections are not followed. Failed
// attempts are repeated with growing pauses; after the last one the delivery is dead, and a user can have it made
// again. A receiver that has failed several times in a row gets one attempt at a time, so that it does not hold up the
// deliveries to others. For the same reason, a process makes at most four attempts for a webhook, and eight for the
// webhooks of a namespace, at the same time.
package webhooks

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/server/egress"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	// maxAttempts is the number of attempts after which a delivery is dead. They take about seven hours.
	maxAttempts = 16
	maxPause    = time.Hour      // maximum time between two attempts
	maxAge      = 24 * time.Hour // age of an event from which on its delivery is dead even after fewer attempts
	// maximum number of bytes of an answer that are read, so that the connection can be used again
	maxAnswer   = 64 << 10
	failuresRow = 3 // number of failures in a row after which a receiver gets one attempt at a time
	// maximum number of running attempts of a webhook; twice as many for all webhooks of a namespace
	eachShare = 4
	prefix    = "whsec_" // prefix of secrets in BASE64, as Standard Webhooks specifies
)

// Store contains webhooks and their deliveries. *records.Webhooks implements it.
type Store interface {
	List(ctx context.Context, namespace string) ([]records.Webhook, error)
	Plan(ctx context.Context) error
	Due(ctx context.Context, now time.Time, hold time.Duration, shares records.Shares) ([]records.Delivery, error)
	Done(ctx context.Context, webhook string, seq int64) error
	Failed(ctx context.Context, d records.Delivery) error
}

var _ Store = (*records.Webhooks)(nil)

// Options configures a Sender. Store and Changed are required.
type Options struct {
	Store   Store
	Changed func() <-chan struct{} // returns a channel that is closed when this process has added events
	Dialer  egress.Dialer
	Log     *zap.Logger
}

type pace struct {
	poll    time.Duration // time between two searches for deliveries
	timeout time.Duration // time limit of an attempt
	hold    time.Duration // time after which the delivery of a node that died is due again; it is longer than timeout
	first   time.Duration // pause after the first failure; doubled for each further one
	workers int           // maximum number of attempts at the same time
}

// Sender makes deliveries.
type Sender struct {
	o      Options
	pace   pace
	client *http.Client
	ctx    context.Context
	stop   context.CancelFunc
	loop   sync.WaitGroup
	work   sync.WaitGroup
	free   chan struct{} // semaphore: has an element for each attempt that can begin
	ended  chan struct{} // receives a value when an attempt has ended

	delivered, failed, dead atomic.Int64

	mu        sync.Mutex // protects receivers
	receivers map[string]*receiver
}

// receiver contains the results of this process's attempts for one webhook.
type receiver struct {
	hook     records.Webhook
	failures int       // number of failures in a row
	until    time.Time // time of the next attempt after failures
	busy     int       // number of running attempts
}

// New returns a Sender that works until Close.
func New(o Options) *Sender {
	return start(o, pace{poll: time.Second, timeout: 10 * time.Second, hold: time.Minute,
		first: 5 * time.Second, workers: 16})
}

func start(o Options, p pace) *Sender {
	transport := o.Dialer.Transport()
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	s := &Sender{
		o: o, pace: p, free: make(chan struct{}, p.workers), ended: make(chan struct{}, 1), receivers: map[string]*receiver{},
		client: &http.Client{Transport: transport, Timeout: p.timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			}},
	}
	for range p.workers {
		s.free <- struct{}{}
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.loop.Go(s.run)
	return s
}

// Close aborts the attempts. Their deliveries are due again after a minute.
func (s *Sender) Close() error {
	s.stop()
	s.loop.Wait()
	s.work.Wait()
	s.client.CloseIdleConnections()
	return nil
}

// Metrics writes the metrics of a Sender.
func (s *Sender) Metrics(w *metrics.Writer) {
	w.Family("artifactfs_server_webhook_attempts_total", metrics.Counter, "Attempts to deliver an event to a webhook.")
	w.Sample(float64(s.delivered.Load()), metrics.Label{Name: "result", Value: "delivered"})
	w.Sample(float64(s.failed.Load()), metrics.Label{Name: "result", Value: "failed"})
	w.Family("artifactfs_server_webhook_dead_total", metrics.Counter, "Deliveries that were given up.")
	w.Sample(float64(s.dead.Load()))
}

func (s *Sender) run() {
	tick := time.NewTicker(s.pace.poll)
	defer tick.Stop()
	failing := false
	for {
		changed := s.o.Changed() // before planning, so that no event is missed
		more, err := s.begin()
		if err != nil && !failing && s.ctx.Err() == nil {
			s.o.Log.Warn("could not look for deliveries to webhooks", zap.Error(err))
		}
		if failing = err != nil; more {
			continue
		}
		select {
		case <-changed:
		case <-s.ended:
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		if failing && !s.sleep(tick.C) {
			return
		}
	}
}

// sleep waits for the next tick after a failure. It returns false if the Sender is closed first.
func (s *Sender) sleep(tick <-chan time.Time) bool {
	select {
	case <-tick:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// begin begins deliveries that are due, as many as can be made at the same time. The result more reports whether there
// may be others.
func (s *Sender) begin() (more bool, err error) {
	if err := s.o.Store.Plan(s.ctx); err != nil {
		return false, err
	}
	room := len(s.free) // only this goroutine takes elements
	if room == 0 {
		return false, nil
	}
	due, err := s.o.Store.Due(s.ctx, time.Now(), s.pace.hold, s.shares(room))
	if err != nil || len(due) == 0 {
		return false, err
	}
	list, err := s.o.Store.List(s.ctx, "")
	if err != nil {
		return false, err
	}
	hooks := make(map[string]records.Webhook, len(list))
	for _, h := range list {
		hooks[h.ID] = h
	}
	s.forget(hooks)
	for _, d := range due {
		h, ok := hooks[d.Webhook]
		if !ok {
			continue // the webhook was removed with its deliveries
		}
		if wait := s.enter(h); wait > 0 {
			if err := s.postpone(d, wait); err != nil {
				return false, err
			}
			continue
		}
		<-s.free
		s.work.Go(func() {
			s.deliver(h, d)
			s.free <- struct{}{}
			signal.Send(s.ended)
		})
	}
	return len(s.free) > 0, nil // the shares can have left out others
}

// shares returns which deliveries can be begun now. A webhook gets further ones when all its attempts have ended.
func (s *Sender) shares(room int) records.Shares {
	s.mu.Lock()
	defer s.mu.Unlock()
	shares, of := records.Shares{Limit: room, Each: eachShare}, map[string]int{}
	for id, r := range s.receivers {
		if r.busy == 0 {
			continue
		}
		shares.Hooks = append(shares.Hooks, id)
		if of[r.hook.Namespace] += r.busy; of[r.hook.Namespace] > eachShare &&
			!slices.Contains(shares.Namespaces, r.hook.Namespace) {
			shares.Namespaces = append(shares.Namespaces, r.hook.Namespace)
		}
	}
	return shares
}

// forget removes receivers of webhooks that were removed.
func (s *Sender) forget(hooks map[string]records.Webhook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.receivers {
		if _, ok := hooks[id]; !ok && r.busy == 0 {
			delete(s.receivers, id)
		}
	}
}

// enter begins an attempt, or returns how long the delivery must wait, because the receiver has failed several times.
func (s *Sender) enter(h records.Webhook) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.receivers[h.ID]
	if r == nil {
		r = &receiver{hook: h}
		s.receivers[h.ID] = r
	}
	if r.failures >= failuresRow {
		if wait := time.Until(r.until); wait > 0 {
			return wait
		}
		if r.busy > 0 {
			return s.pace.timeout
		}
	}
	r.busy++
	return 0
}

// endAttempt ends an attempt.
func (s *Sender) endAttempt(id string, err error, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.receivers[id]
	r.busy--
	if err == nil {
		r.failures = 0
		return
	}
	r.failures++
	// The pause depends on the failures of the receiver, not on the attempts of this delivery.
	r.until = time.Now().Add(s.pauses().Limit(r.failures))
	if next.Before(r.until) {
		r.until = next
	}
}

// postpone makes a delivery due later without an attempt. It ends deliveries of old events.
func (s *Sender) postpone(d records.Delivery, wait time.Duration) error {
	if d.Dead = s.tooOld(d); d.Dead {
		s.dead.Add(1)
	}
	// A random part lets the deliveries that wait for a receiver become due one after the other.
	d.Next = time.Now().Add(wait + mathrand.N(wait+1))
	return s.o.Store.Failed(s.ctx, d)
}

func (s *Sender) tooOld(d records.Delivery) bool {
	return !d.Event.Time.IsZero() && time.Since(d.Event.Time) > maxAge && d.Attempts > 0
}

// deliver makes one attempt and records its result.
func (s *Sender) deliver(h records.Webhook, d records.Delivery) {
	after, err := s.attempt(h, d)
	if s.ctx.Err() != nil { // the attempt was interrupted by Close, which is not a failure of the receiver
		s.endAttempt(h.ID, nil, time.Time{})
		return
	}
	d.Attempts++
	d.Next = time.Now().Add(max(s.pause(d.Attempts), after))
	s.endAttempt(h.ID, err, d.Next)
	if err == nil {
		s.delivered.Add(1)
		err = s.o.Store.Done(s.ctx, d.Webhook, d.Event.Seq)
	} else {
		s.failed.Add(1)
		d.Error = err.Error()
		if d.Dead = d.Attempts >= maxAttempts || errors.Is(err, errGone) || s.tooOld(d); d.Dead {
			s.dead.Add(1)
			s.o.Log.Info("gave up a delivery to a webhook", zap.String("webhook", h.ID), zap.Int64("event", d.Event.Seq),
				zap.Error(err))
		}
		err = s.o.Store.Failed(s.ctx, d)
	}
	if err != nil && s.ctx.Err() == nil { // the delivery is made again after s.pace.hold
		s.o.Log.Warn("could not record a delivery to a webhook", zap.Error(err))
	}
}

// pauses are the longest pauses between two attempts.
func (s *Sender) pauses() backoff.Backoff {
	return backoff.Backoff{First: s.pace.first, Longest: maxPause}
}

// pause returns the time until the next attempt after a number of failures. Only a quarter of it is random, so that all
// attempts together take as long as the documentation promises.
func (s *Sender) pause(attempts int) time.Duration {
	d := s.pauses().Limit(attempts)
	return d - mathrand.N(d/4+1)
}

var (
	errGone = errors.New("status 410: the receiver is gone")
	errSlow = errors.New("no answer in time")
)

// attempt sends a request. If it fails, the result after is the time in the header Retry-After of the answer.
func (s *Sender) attempt(h records.Webhook, d records.Delivery) (after time.Duration, err error) {
	text, err := events.ForSubscription(d.Event.Body, h.ID)
	if err != nil {
		return 0, errors.New("event is not valid")
	}
	r, err := http.NewRequestWithContext(s.ctx, http.MethodPost, h.URL, strings.NewReader(string(text)))
	if err != nil {
		return 0, errors.New("URL is not valid")
	}
	id, now := ID(h.ID, d.Event.Seq), time.Now()
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"artifactfs-webhooks"}, "Webhook-Id": {id},
		"Webhook-Timestamp": {strconv.FormatInt(now.Unix(), 10)}, "Webhook-Signature": {Sign(h.Secret, id, now, text)},
		"Artifactfs-Event": {d.Event.Type}, "Artifactfs-Attempt": {strconv.Itoa(d.Attempts + 1)},
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return 0, reason(err)
	}
	defer answer.Body.Close()
	io.CopyN(io.Discard, answer.Body, maxAnswer)
	switch c := answer.StatusCode; {
	case c >= 200 && c < 300:
		return 0, nil
	case c == http.StatusGone:
		return 0, errGone
	case c == http.StatusTooManyRequests || c == http.StatusServiceUnavailable:
		after = backoff.RetryAfter(answer.Header.Get("Retry-After"), time.Now(), maxPause)
	}
	return after, fmt.Errorf("status %d", answer.StatusCode)
}

// reason returns the cause of a failed request for users, in words that do not describe the network of the server.
func reason(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, egress.ErrPrivate):
		return egress.ErrPrivate
	case errors.As(err, &dns):
		return errors.New("host not found")
	case errors.As(err, &timeout) && timeout.Timeout():
		return errSlow
	}
	return errors.New("connection failed")
}

// ID returns the id of the delivery of an event, which is the same for every attempt.
func ID(webhook string, seq int64) string { return webhook + "-" + strconv.FormatInt(seq, 10) }

// Sign returns the value of the header webhook-signature.
func Sign(secret, id string, at time.Time, body []byte) string {
	key, err := Key(secret)
	if err != nil {
		key = []byte(secret)
	}
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%s.%d.%s", id, at.Unix(), body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// Key returns the key of a secret: the decoded bytes after whsec_, or the bytes of the text itself if it does not begin
// with whsec_.
func Key(secret string) ([]byte, error) {
	if encoded, ok := strings.CutPrefix(secret, prefix); ok {
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(key) == 0 {
			return nil, errors.New("secret is not whsec_ with BASE64")
		}
		return key, nil
	}
	return []byte(secret), nil
}

// NewSecret returns a random secret.
func NewSecret() string {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return prefix + base64.StdEncoding.EncodeToString(key)
}
