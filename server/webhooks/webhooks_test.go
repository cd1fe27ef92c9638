package webhooks

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/metrics/metricstest"
	"github.com/artifactfs/artifactfs/server/egress"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestMain runs the tests, or acts as a sender that TestAnotherNodeDelivers starts and kills.
func TestMain(m *testing.M) {
	if url := os.Getenv("WEBHOOKS_TEST_NODE"); url != "" {
		db, err := records.Open(context.Background(), url)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		start(Options{Store: db.Webhooks, Changed: db.Events.Changed, Dialer: egress.Dialer{AllowPrivate: true}}, quick)
		select {}
	}
	os.Exit(m.Run())
}

var quick = pace{poll: 5 * time.Millisecond, timeout: 500 * time.Millisecond, hold: time.Second,
	first: time.Millisecond, workers: 4}

// calm is quick for tests in which no attempt and no node fails. On a busy machine, an attempt must not be repeated
// because it takes long.
var calm = pace{poll: 5 * time.Millisecond, timeout: time.Minute, hold: time.Hour, first: time.Millisecond, workers: 4}

const secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="

// world is a database with webhooks, and a receiver.
type world struct {
	t    *testing.T
	db   *records.DB
	url  string // URL of the database
	logs *observer.ObservedLogs
	log  *zap.Logger
}

func newWorld(t *testing.T) *world {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	w := &world{t: t, url: "sqlite:" + filepath.Join(t.TempDir(), "records.db"), logs: logs, log: zap.New(core)}
	w.db = w.open()
	return w
}

func (w *world) open() *records.DB {
	w.t.Helper()
	db, err := records.Open(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { db.Close() })
	return db
}

func (w *world) hook(id, url string, types ...string) {
	w.t.Helper()
	if err := w.db.Webhooks.Create(w.t.Context(),
		records.Webhook{ID: id, Namespace: "ns", Types: types, URL: url, Secret: secret}, records.Cause{}); err != nil {
		w.t.Fatal(err)
	}
}

// send starts a Sender.
func (w *world) send(db *records.DB, p pace, private bool) *Sender {
	w.t.Helper()
	s := start(Options{Store: db.Webhooks, Changed: db.Events.Changed, Dialer: egress.Dialer{AllowPrivate: private},
		Log: w.log}, p)
	w.t.Cleanup(func() { s.Close() })
	return s
}

// happen adds n events to the database.
func (w *world) happen(n int) {
	w.t.Helper()
	var list []records.Event
	for i := range n {
		list = append(list, events.Cloned(events.Stamp{Account: "acc", Time: time.Now()},
			records.Repo{Namespace: "ns", Name: fmt.Sprint("r", i)}))
	}
	if err := w.db.Events.Add(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
}

// dead waits for n deliveries of a webhook that were given up, and returns them.
func (w *world) dead(id string, n int) (dead []records.Delivery) {
	w.t.Helper()
	await.Until(w.t, "deliveries were given up", func() bool {
		var err error
		dead, err = w.db.Webhooks.Dead(w.t.Context(), id, 100)
		return err == nil && len(dead) == n
	})
	return dead
}

// inbox is a receiver of webhooks that checks the requests, and returns the answers that the test has set.
type inbox struct {
	*httptest.Server
	t      *testing.T
	mu     sync.Mutex
	ids    []string // ids in all requests
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

func newInbox(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *inbox {
	t.Helper()
	b := &inbox{t: t, answer: answer}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	id, at := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
	mac := hmac.New(sha256.New, []byte("0123456789abcdef"))
	mac.Write([]byte(id + "." + at + "." + string(text)))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); err != nil ||
		r.Header.Get("webhook-signature") != want {
		b.t.Errorf("signature is %q, want %q (%v)", r.Header.Get("webhook-signature"), want, err)
	}
	var e struct {
		Type     string
		Metadata struct{ EventSubscriptionID string }
	}
	if err := json.Unmarshal(text, &e); err != nil || e.Type != r.Header.Get("Artifactfs-Event") ||
		!strings.HasPrefix(id, e.Metadata.EventSubscriptionID+"-") {
		b.t.Errorf("body %s of type %s (%v)", text, r.Header.Get("Artifactfs-Event"), err)
	}
	b.mu.Lock()
	b.ids = append(b.ids, id)
	n := len(b.ids)
	b.mu.Unlock()
	if b.answer != nil {
		b.answer(n, w, r)
	}
}

// all returns the different ids of the requests, sorted, and the number of requests.
func (b *inbox) all() ([]string, int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := slices.Clone(b.ids)
	slices.Sort(ids)
	return slices.Compact(ids), len(b.ids)
}

func (b *inbox) wait(events int) int {
	b.t.Helper()
	await.Until(b.t, "the events have arrived", func() bool { ids, _ := b.all(); return len(ids) == events })
	_, n := b.all()
	return n
}

func TestEventsAreDeliveredOnceBySeveralNodes(t *testing.T) {
	w := newWorld(t)
	b := newInbox(t, nil)
	w.hook("all", b.URL)
	w.hook("pushes", b.URL, "cf.artifacts.repo.pushed")
	senders := []*Sender{w.send(w.db, calm, true), w.send(w.open(), calm, true), w.send(w.open(), calm, true)}
	for range 10 {
		w.happen(10)
	}
	b.wait(100)
	await.Until(t, "no delivery is left", func() bool {
		due, err := w.db.Webhooks.Due(t.Context(), time.Now().Add(time.Hour), 0, records.Shares{Limit: 1, Each: 1})
		return err == nil && len(due) == 0
	})
	if _, n := b.all(); n != 100 {
		t.Errorf("%d requests for 100 events", n)
	}
	sum := int64(0)
	for _, s := range senders {
		sum += s.delivered.Load()
	}
	if sum != 100 {
		t.Errorf("%d deliveries were counted", sum)
	}
	var text bytes.Buffer
	m := metrics.NewWriter(&text)
	senders[0].Metrics(m)
	m.Flush()
	if all, err := metricstest.Parse(text.String()); err != nil {
		t.Error(err)
	} else if got, _ := metricstest.Value(all, "artifactfs_server_webhook_attempts_total", "result",
		"delivered"); int64(got) != senders[0].delivered.Load() {
		t.Errorf("metric %v", got)
	}
}

func TestFailuresAreRepeated(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	b := newInbox(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n {
		case 1:
			http.Error(w, "", http.StatusInternalServerError)
		case 2:
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		case 3:
			panic(http.ErrAbortHandler)
		case 4:
			<-hang
		case 5:
			w.Header().Set("Retry-After", "0")
			http.Error(w, "", http.StatusTooManyRequests)
		}
	})
	defer close(hang)
	w.hook("h", b.URL)
	w.send(w.db, quick, true)
	w.happen(1)
	b.wait(1)
	await.Until(t, "the sixth attempt", func() bool { _, n := b.all(); return n >= 6 })
	await.Until(t, "no delivery is left", func() bool {
		due, err := w.db.Webhooks.Due(t.Context(), time.Now().Add(time.Hour), 0, records.Shares{Limit: 1, Each: 1})
		return err == nil && len(due) == 0
	})
}

func TestDeadDeliveriesCanBeRetried(t *testing.T) {
	w := newWorld(t)
	var good sync.WaitGroup // the receiver answers with status 200 when all are done
	good.Add(1)
	ok := func() bool {
		done := make(chan struct{})
		go func() { good.Wait(); close(done) }()
		select {
		case <-done:
			return true
		case <-time.After(time.Millisecond):
			return false
		}
	}
	b := newInbox(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !ok() {
			http.Error(w, "secret text", http.StatusBadGateway)
		}
	})
	gone := newInbox(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	p := calm
	p.first = time.Microsecond
	w.hook("h", b.URL)
	w.hook("gone", gone.URL)
	s := w.send(w.db, p, true)
	w.happen(1)
	d := w.dead("h", 1)[0]
	if d.Attempts != maxAttempts || d.Error != "status 502" {
		t.Errorf("dead delivery %+v", d)
	}
	if d := w.dead("gone", 1)[0]; d.Attempts != 1 || d.Error != errGone.Error() {
		t.Errorf("delivery to a receiver that is gone: %+v", d)
	}
	if _, n := b.all(); n != maxAttempts {
		t.Errorf("%d attempts, want %d", n, maxAttempts)
	}
	good.Done()
	if err := w.db.Webhooks.Retry(t.Context(), "h", d.Event.Seq, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the delivery has arrived", func() bool { return s.delivered.Load() == 1 })
	w.dead("h", 0)
	for _, e := range w.logs.All() {
		if text := fmt.Sprint(e.Message, e.ContextMap()); strings.Contains(text, secret) || strings.Contains(text, b.URL) {
			t.Errorf("a URL or a secret was logged: %s", text)
		}
	}
}

// TestAReceiverThatHangsHoldsUpNoOther checks that a receiver that hangs does not delay the deliveries to another one
// for longer than one round of attempts.
func TestAReceiverThatHangsHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	hang := make(chan struct{})
	slow, fast := newInbox(t, func(int, http.ResponseWriter, *http.Request) { <-hang }), newInbox(t, nil)
	defer close(hang)
	w.hook("slow", slow.URL)
	p := quick
	p.first = time.Minute
	w.send(w.db, p, true)
	w.happen(100)
	await.Until(t, "the slow receiver is known to fail", func() bool { _, n := slow.all(); return n >= failuresRow })
	w.hook("fast", fast.URL)
	w.happen(20)
	fast.wait(20)
	if _, n := slow.all(); n > 2*p.workers {
		t.Errorf("the slow receiver got %d requests", n)
	}
}

func TestPrivateReceiversAreRefused(t *testing.T) {
	w := newWorld(t)
	b := newInbox(t, nil)
	w.hook("h", b.URL)
	p := quick
	p.first = time.Microsecond
	w.send(w.db, p, false)
	w.happen(1)
	if d := w.dead("h", 1)[0]; d.Error != "address is not public" {
		t.Errorf("error %q", d.Error)
	}
	if _, n := b.all(); n != 0 {
		t.Errorf("the private receiver got %d requests", n)
	}
}

// TestAnotherNodeDelivers checks that another node makes a delivery if a node is killed or closed during an attempt.
func TestAnotherNodeDelivers(t *testing.T) {
	w := newWorld(t)
	hang, closed := make(chan struct{}), make(chan struct{})
	victims, seconds := make(chan *os.Process, 1), make(chan *Sender, 1)
	b := newInbox(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		switch n { // a node that ends later may make the same delivery again
		case 1:
			(<-victims).Kill()
			<-hang
		case 2:
			(<-seconds).Close()
			close(closed)
			<-hang
		}
	})
	defer close(hang)
	w.hook("h", b.URL)
	w.happen(1)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self)
	victim.Env = append(os.Environ(), "WEBHOOKS_TEST_NODE="+w.url)
	victim.Stdout, victim.Stderr = os.Stderr, os.Stderr
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { victim.Process.Kill() })
	victims <- victim.Process
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	await.Receive(t, ended) // killed by the receiver
	p := quick
	p.timeout = time.Minute
	seconds <- w.send(w.db, p, true)
	await.Receive(t, closed)
	third := w.send(w.open(), calm, true)
	await.Until(t, "the third node has delivered", func() bool { return third.delivered.Load() == 1 })
	if ids, n := b.all(); len(ids) != 1 || n != 3 {
		t.Errorf("%d requests with the ids %v, want 3 with one id", n, ids)
	}
}

func TestPausesGrow(t *testing.T) {
	s := &Sender{pace: pace{first: 5 * time.Second}}
	sum := time.Duration(0)
	for n := 1; n < maxAttempts; n++ {
		want := min(5*time.Second<<(n-1), maxPause)
		for range 20 {
			if got := s.pause(n); got < want*3/4 || got > want {
				t.Errorf("pause after %d failures is %v, want %v to %v", n, got, want*3/4, want)
			}
		}
		sum += want
	}
	if sum < 6*time.Hour || sum > 8*time.Hour {
		t.Errorf("all attempts take %v", sum)
	}
}

// TestSignatureOfTheSpecification checks that the signature is that of the example in the specification of Standard
// Webhooks.
func TestSignatureOfTheSpecification(t *testing.T) {
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	got := Sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0),
		[]byte(`{"test": 2432232314}`))
	if got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
}

func TestSecrets(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if key, err := Key(a); a == b || err != nil || len(key) != 32 {
		t.Errorf("secrets %s and %s: %v", a, b, err)
	}
	if key, err := Key("plain text of a user"); err != nil || string(key) != "plain text of a user" {
		t.Errorf("key of a plain text: %q, %v", key, err)
	}
	if _, err := Key("whsec_&"); err == nil {
		t.Error("a secret that is no BASE64 was accepted")
	}
}

func FuzzKey(f *testing.F) {
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	f.Add("whsec_")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := Key(text)
		if err == nil && text != "" && len(key) == 0 {
			t.Errorf("the key of %q is empty", text)
		}
		Sign(text, "id", time.Unix(0, 0), nil)
	})
}
