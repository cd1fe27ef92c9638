package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/artifactfs/artifactfs/fetch/readprofile"
)

// fake is a Handler whose Mount is given by the test; it remembers what is mounted.
type fake struct {
	mount    func(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error)
	prefetch func(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error)
	trace    func(ctx context.Context, r TraceRequest, emit func(Trace) error) error

	mu       sync.Mutex
	mounted  map[string]MountRequest
	unmounts chan string
	shutdown func() error
}

func newFake() *fake {
	return &fake{mounted: make(map[string]MountRequest), unmounts: make(chan string, 10)}
}

func (f *fake) Mount(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
	if f.mount != nil {
		return f.mount(ctx, r, progress)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mounted[r.Dir] = r
	return MountReply{ID: "m1", Dir: r.Dir, Remote: "loopback", Ref: r.Ref}, nil
}

func (f *fake) Unmount(ctx context.Context, r UnmountRequest) (UnmountReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unmounts <- r.Dir
	if _, ok := f.mounted[r.Dir]; !ok {
		return UnmountReply{}, fmt.Errorf("wrapped: %w",
			&Error{Code: ExitNotMounted, Verb: "unmount", Object: r.Dir, Cause: "nothing is mounted there",
				Hint: "artifactfs list", Kind: CodeConflict})
	}
	delete(f.mounted, r.Dir)
	return UnmountReply{ID: "m1", Dir: r.Dir}, nil
}

func (f *fake) Status(ctx context.Context) (Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Mounts: []MountStatus{}}
	for dir, r := range f.mounted {
		s.Mounts = append(s.Mounts, MountStatus{ID: "m1", Dir: dir, Ref: r.Ref, State: StateMounted})
	}
	return s, nil
}

func (f *fake) Prefetch(ctx context.Context, r PrefetchRequest, progress func(Progress)) (PrefetchReply, error) {
	return f.prefetch(ctx, r, progress)
}

func (f *fake) Switch(_ context.Context, r SwitchRequest, _ func(Progress)) (SwitchReply, error) {
	return SwitchReply{Dir: r.Dir, Branch: r.Ref}, nil
}

func (f *fake) Trace(ctx context.Context, r TraceRequest, emit func(Trace) error) error {
	return f.trace(ctx, r, emit)
}

func (f *fake) Shutdown(ctx context.Context) error {
	if f.shutdown == nil {
		return nil
	}
	return f.shutdown()
}

// serve runs a server until the test ends; ended is closed when Serve has returned.
func serve(t *testing.T, socket string, h Handler) (s *Server, ended chan struct{}) {
	t.Helper()
	s, err := Listen(t.Context(), socket, h, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan struct{})
	go func() { s.Serve(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); await(t, ended) })
	return s, ended
}

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing happened for 20 s")
	}
	return v
}

func mountRequest(dir string) MountRequest {
	return MountRequest{Remote: "/srv/r.git", Dir: dir,
		MountFetch: MountFetch{History: HistoryNone, Prefetch: PrefetchNone, Wait: WaitTree}}
}

func TestEveryFieldCrossesTheSocket(t *testing.T) {
	f := newFake()
	socket := filepath.Join(t.TempDir(), "run", "daemon.sock")
	serve(t, socket, f)
	c := (&Client{socket: socket})
	want := MountRequest{
		Remote: "https://127.0.0.1/r", Dir: "/m/ä", Ref: "v1", Session: "s-1", Tenant: "team", ReadOnly: true,
		Redirects: []string{"a b", "c"}, RedirectsOnly: true, Submodules: true,
		MountFetch: MountFetch{History: HistoryFull, Prefetch: PrefetchAll, PrefetchBudget: 1 << 40, Wait: WaitGit,
			Via: "http://relay:9428", CacheSize: 2, StoreFrom: "/host", Timeout: time.Minute,
			Selection: readprofile.Selection{Profile: "build", ShareProfile: true}},
		MountAccess: MountAccess{AllowOther: true, GroupWrite: true, IDMap: true, ACL: true, UID: 1<<32 - 1, GID: 7,
			Umask: new(uint32)},
		MountLogin: MountLogin{TokenFile: "/t", Token: "hunter2", SessionToken: "hunter3", SessionTokenFile: "/s",
			Environment: Environment{"A=1", "B=x\ny=z"}},
		Follow: true, FollowInterval: time.Second, GitDir: GitDirInside, Nonce: "n", Passing: true, Through: "/proc/1/fd/3",
		CreateRemote: []string{"make-it", "arg"},
		At:           "@~1", Second: "/m/second",
		NewGit: &NewGit{Head: &NewHead{Branch: "b"}, Settings: []GitSetting{{Name: "user.name", Value: "a b"}},
			Tracking: true},
		SessionOptions: SessionOptions{Remote: "https://u:p@127.0.0.1/s", Policy: "interval=1m", TakeOver: true,
			Include: []string{"a"}, Exclude: []string{"b"}, NoDenyList: true, MaxFileSize: 9},
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(want)) {
		// these two are not sent
		if reflect.ValueOf(want).FieldByIndex(f.Index).IsZero() && f.Name != "Device" && f.Name != "ExactOwner" {
			t.Fatalf("field %s is not tested", f.Name)
		}
	}
	if _, err := c.Mount(t.Context(), want, nil); err != nil {
		t.Fatal(err)
	}
	if got := f.mounted["/m/ä"]; !reflect.DeepEqual(got, want) {
		t.Errorf("the handler got %+v", got)
	}
	s, err := c.Status(t.Context())
	if err != nil || len(s.Mounts) != 1 || s.Mounts[0].Ref != "v1" {
		t.Errorf("status %+v, %v", s, err)
	}
	if r, err := c.Unmount(t.Context(), UnmountRequest{Dir: "/m/ä"}); err != nil || r.Dir != "/m/ä" {
		t.Errorf("unmount %+v, %v", r, err)
	}
}

func TestErrorCrossesTheSocketWhole(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	f.prefetch = func(context.Context, PrefetchRequest, func(Progress)) (PrefetchReply, error) { panic("at the disco") }
	serve(t, socket, f)
	c := (&Client{socket: socket})
	_, err := c.Unmount(t.Context(), UnmountRequest{Dir: "/nowhere"})
	var e *Error
	if !errors.As(err, &e) ||
		*e != (Error{ExitNotMounted, "unmount", "/nowhere", "nothing is mounted there", "artifactfs list", CodeConflict}) {
		t.Errorf("got %#v", err)
	}
	_, err = c.Prefetch(t.Context(), PrefetchRequest{Dir: "/m"}, nil)
	if !errors.As(err, &e) || e.Code != ExitFailed || strings.Contains(e.Cause, "disco") {
		t.Errorf("after a panic: %#v", err)
	}
	if _, err := c.Status(t.Context()); err != nil {
		t.Errorf("the server died of a panic: %v", err)
	}
}

func TestProgressComesInOrderAndNeverHoldsUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	f.mount = func(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
		progress(Progress{Phase: "connect", Message: "no filter here"})
		for i := range int64(100_000) {
			progress(Progress{Phase: "trees", Done: i, Unit: "objects"})
		}
		progress(Progress{Phase: "mount", Done: 1, Total: 1})
		return MountReply{Dir: r.Dir}, nil
	}
	serve(t, socket, f)
	var got []Progress
	_, err := (&Client{socket: socket}).Mount(t.Context(), mountRequest("/m"), func(p Progress) { got = append(got, p) })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < 3 || got[0].Message != "no filter here" || got[len(got)-1].Phase != "mount" ||
		got[len(got)-2].Done != 99_999 {
		t.Errorf("progress %+v", got)
	}
	for i := 2; i < len(got)-1; i++ {
		if got[i].Done <= got[i-1].Done {
			t.Errorf("progress goes back: %+v", got)
		}
	}
}

func TestAskerThatLeavesCancels(t *testing.T) {
	for _, how := range []string{"interrupt", "death"} {
		t.Run(how, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "d.sock")
			f := newFake()
			arrived, undone := make(chan struct{}), make(chan error, 1)
			f.mount = func(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
				close(arrived)
				<-ctx.Done()
				undone <- ctx.Err()
				return MountReply{}, ctx.Err()
			}
			serve(t, socket, f)
			if how == "death" {
				conn := rawRequest(t, socket, mountLine(t))
				await(t, arrived)
				conn.Close()
				await(t, undone)
				return
			}
			ctx, cancel := context.WithCancel(t.Context())
			answer := make(chan error, 1)
			go func() {
				_, err := (&Client{socket: socket}).Mount(ctx, mountRequest("/m"), nil)
				answer <- err
			}()
			await(t, arrived)
			cancel()
			if err := await(t, answer); !errors.Is(err, context.Canceled) {
				t.Errorf("the asker got %v", err)
			}
			if len(undone) != 1 {
				t.Error("the asker went before its work was undone")
			}
		})
	}
}

func TestMountNobodyHeardOfIsUndone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	arrived := make(chan struct{})
	f.mount = func(ctx context.Context, r MountRequest, progress func(Progress)) (MountReply, error) {
		f.mounted[r.Dir] = r
		close(arrived)
		<-ctx.Done() // too late to stop
		return MountReply{Dir: r.Dir}, nil
	}
	serve(t, socket, f)
	conn := rawRequest(t, socket, mountLine(t))
	await(t, arrived)
	conn.CloseWrite()
	if dir := await(t, f.unmounts); dir != "/m" {
		t.Errorf("unmounted %q", dir)
	}
	line, err := readLine(bufio.NewReader(conn), maxMessage)
	if m, _ := decodeMessage(line); err != nil || m.Error == nil || m.Error.Cause != "interrupted" {
		t.Errorf("answer %s, %v", line, err)
	}
}

func mountLine(t *testing.T) []byte {
	t.Helper()
	line, err := encodeRequest(opMount, mountRequest("/m"))
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func rawRequest(t *testing.T, socket string, line []byte) *net.UnixConn {
	t.Helper()
	conn, err := dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write(line); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServerRefusesBadRequests(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	serve(t, socket, newFake())
	for line, want := range map[string]string{
		`hello`:                                  "not a JSON object",
		`{"version":1}`:                          "request uses protocol 1, but this daemon uses protocol 6",
		`{"version":6,"op":1}`:                   `field "op" has the wrong type`,
		`{"version":6,"op":"explode","args":{}}`: `unknown operation "explode"`,
		`{"version":6,"op":"unmount","args":{"dir":"here"}}`:                              `not absolute`,
		`{"version":6,"op":"mount","args":{"remote":"r","dir":"/m","wait":"x"}}`:          `unknown state "x" to wait for`,
		`{"version":6,"op":"unmount","args":{"dir":"/m","force":true},"needs":["force"]}`: `needs field "force" of unmount, which this daemon does not know`,
		`{"version":6,"op":"mount","args":{"remote":"r","session":"../x"}}`:               `invalid session name`,
		`{"version":6,"op":"unmount","args":{"dir":"/a` + "\xff" + `"}}`:                  "not valid UTF-8",
		`{"version":6,"op":"unmount","args":` + strings.Repeat(" ", maxRequest):           "line is longer than",
		`{"version":6,"op":"status","args":{}}` + "\n" +
			`{}`: "unexpected bytes after the request",
		`{"version":6,"op":"status","args":{}} {}`: "not a JSON object",
	} {
		conn, err := dial(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(line + "\n"))
		answer, err := readLine(bufio.NewReader(conn), maxMessage)
		conn.Close()
		m, decodeErr := decodeMessage(answer)
		if err != nil || decodeErr != nil || m.Error == nil || !strings.Contains(m.Error.Error(), want) {
			t.Errorf("%.60s: got %s (%v), want %q", line, answer, err, want)
		}
	}
}

// answering accepts once for each line, and says it.
func answering(t *testing.T, lines ...string) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for _, line := range lines {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			readLine(bufio.NewReader(conn), maxRequest)
			if line != "" {
				fmt.Fprintln(conn, line)
			}
			conn.Close()
		}
	}()
	return &Client{socket: socket}
}

func TestOtherVersionIsNamedWithAWayOut(t *testing.T) {
	for _, line := range []string{`{"version":2,"news":[]}`, `{"version":5,"result":{}}`,
		`{"version":9,"error":{"cause":"no"}}`} {
		_, err := answering(t, line).Unmount(t.Context(), UnmountRequest{Dir: "/m"})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Cause, ", but this command uses protocol 6") ||
			!strings.Contains(e.Hint, fmt.Sprint(os.Getpid())) {
			t.Errorf("%s: got %#v", line, err)
		}
	}
}

func TestRequestsOfOtherVersions(t *testing.T) {
	want := UpgradeRequest{"/bin/a"}
	if a, err := decodeRequest([]byte(`{"version":9,"op":"upgrade","args":{"executable":"/bin/a"}}`)); err != nil ||
		a.args != want || a.version != 6 {
		t.Errorf("upgrade by a later version: read as %+v, %v, want %+v, to be answered in version 6", a, err, want)
	}
	a, err := decodeRequest([]byte(`{"version":5,"op":"upgrade","args":{"executable":"/bin/a"}}`))
	if AsError(err).ErrorCode() != CodeUnsupported || a.version != 5 {
		t.Errorf("upgrade by an older version: got %v in version %d, want it refused as unsupported, in version 5",
			err, a.version)
	}
}

func TestBrokenRequestsAreAskedAgain(t *testing.T) {
	const died = ""
	if s, err := answering(t, died, died, `{"version":6,"result":{"mounts":[]}}`).Status(t.Context()); err != nil ||
		s.Mounts == nil {
		t.Errorf("status: %+v, %v", s, err)
	}
	var seen []string
	r, err := answering(t, died, `{"version":6,"result":{"dir":"/m"}}`).Mount(t.Context(), mountRequest("/m"),
		func(p Progress) { seen = append(seen, p.Phase) })
	if err != nil || r.Dir != "/m" {
		t.Errorf("mount: %+v, %v", r, err)
	}
	notMounted := `{"version":6,"error":{"code":4,"cause":"nothing there"}}`
	if r, err := answering(t, died, notMounted).Unmount(t.Context(), UnmountRequest{Dir: "/m"}); err != nil ||
		r.Dir != "/m" {
		t.Errorf("unmount that was made: %+v, %v", r, err)
	}
	if _, err := answering(t, notMounted).Unmount(t.Context(),
		UnmountRequest{Dir: "/m"}); AsError(err).Code != ExitNotMounted {
		t.Errorf("unmount of nothing: %v", err)
	}
	for _, r := range []SwitchRequest{{Dir: "/m", Ref: "-"}, {Dir: "/m", Create: "new"},
		{Dir: "/m", Ref: "HEAD~2", Detach: true}, {Dir: "/m", Ref: "@{-2}"}} {
		if _, err := answering(t, died, `{"version":6,"result":{}}`).Switch(t.Context(), r, nil); !errors.Is(err,
			ErrNoServer) {
			t.Errorf("%+v was asked twice: %v", r, err)
		}
	}
	if _, err := answering(t, died, `{"version":6,"result":{}}`).Switch(t.Context(), SwitchRequest{Dir: "/m", Ref: "v1"},
		nil); err != nil {
		t.Errorf("switch: %v", err)
	}
}

func TestAllTriesOfAMountHaveOneNonce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	f := newFake()
	var nonces []string
	f.mount = func(_ context.Context, r MountRequest, _ func(Progress)) (MountReply, error) {
		nonces = append(nonces, r.Nonce)
		return MountReply{}, nil
	}
	serve(t, socket, f)
	for range 2 {
		if _, err := (&Client{socket: socket}).Mount(t.Context(), mountRequest("/m"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(nonces) != 2 || len(nonces[0]) < 16 || nonces[0] == nonces[1] {
		t.Errorf("nonces %q", nonces)
	}
}

func TestTokenShowsItselfToNobody(t *testing.T) {
	r := mountRequest("/m")
	r.Token = "hunter2"
	dump, err := json.Marshal(map[string]any{"r": r, "t": r.Token})
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	zap.New(core).Info("x", zap.Any("r", r), zap.Any("t", r.Token), zap.Stringer("s", r.Token))
	all := fmt.Sprintf("%s %v %+v %#v %s %q %v", dump, r, r, r, r.Token, r.Token, logs.All()[0].ContextMap())
	if strings.Contains(all, "hunter2") {
		t.Errorf("the token is to be seen: %s", all)
	}
	// A request that is refused must not quote it either.
	_, err = decodeRequest([]byte(`{"version":6,"op":"mount","args":{"token":["hunter2"]}}`))
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("refusal: %v", err)
	}
}

func TestErrorIsOneLine(t *testing.T) {
	e := &Error{Verb: "mount", Object: "/m", Cause: "remote said:\n\x1b[31mred\u009b\n"}
	if got := e.Error(); got != "mount /m: remote said:  [31mred" {
		t.Errorf("got %q", got)
	}
	if got := (&Error{Cause: "alone"}).Error(); got != "alone" {
		t.Errorf("got %q", got)
	}
}

func TestNamesOfSessions(t *testing.T) {
	for name, ok := range map[string]bool{
		"app-1a2b3c4d": true, "a": true, "9.x_Y-": true, "a..b": true, "a.": true, "a.lock": true, "a.lock.b": true,
		strings.Repeat("n", maxSession): true,
		"":                              false, ".": false, "..": false, ".hidden": false, "-x": false, "_x": false,
		"a/b": false, "a b": false,
		"ä": false, "a\x00": false,
		strings.Repeat("n", maxSession+1): false,
	} {
		// Names that cannot be in the name of a ref are valid only without checkpoints.
		inRef := ok && !strings.Contains(name, "..") && !strings.HasSuffix(name, ".") && !strings.HasSuffix(name, ".lock")
		if err := (MountRequest{Session: name}).ValidateSession(); (err == nil) != inRef {
			t.Errorf("ValidateSession of %q = %v", name, err)
		}
		if err :=
			(MountRequest{Session: name,
				SessionOptions: SessionOptions{Remote: RemoteNone}}).ValidateSession(); (err == nil) != ok {
			t.Errorf("ValidateSession of %q without checkpoints = %v", name, err)
		}
		if err := ValidSession(name); (err == nil) != ok {
			t.Errorf("ValidSession(%q) = %v", name, err)
		}
	}
}

func TestForkBringsItsToken(t *testing.T) {
	want := ForkRequest{Of: "s", ID: "@", Mount: mountRequest("/m")}
	want.Mount.Remote, want.Mount.Token = "", "hunter2"
	line, err := encodeRequest(opFork, want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeRequest(line[:len(line)-1]); err != nil || !reflect.DeepEqual(got.args, want) {
		t.Errorf("read as %+v, %v", got.args, err)
	}
	want.Mount.Dir = "m"
	if _, err := encodeRequest(opFork, want); err == nil {
		t.Error("a mount that could not be asked for passes as a fork")
	}
}

func TestPolicies(t *testing.T) {
	for text, want := range map[string]time.Duration{"off": 0, "idle": 0, "before-risk": 0,
		"interval=90s": 90 * time.Second} {
		if _, every, err := Policy(text).Split(); err != nil || every != want {
			t.Errorf("policy %s: got interval %v, %v", text, every, err)
		}
		r := mountRequest("/m")
		r.SessionOptions.Policy = Policy(text)
		if err := r.validate(); err != nil {
			t.Errorf("mount request with policy %s: %v", text, err)
		}
	}
	for _, text := range []string{"on", "interval", "interval=", "interval=5", "interval=1ms", "interval=9999h"} {
		r := mountRequest("/m")
		r.SessionOptions.Policy = Policy(text)
		if err := r.validate(); AsError(err) == nil || AsError(err).Code != ExitUsage {
			t.Errorf("mount request with policy %s: got %v, want a usage error", text, err)
		}
	}
}
