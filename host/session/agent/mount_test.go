package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/thin"
)

// testMount replaces a mount in tests. Instead of a working tree, it has a number of changed paths.
type testMount struct {
	t       *testing.T
	home    string
	writer  session.Writer
	noticed chan struct{}

	mu      sync.Mutex
	changed int64
	at      time.Time
	reasons []session.Reason // reasons of the checkpoints that were made so far
	fails   error            // error that the next capture returns
}

func newTestMount(t *testing.T) *testMount {
	m := &testMount{t: t, home: t.TempDir(), noticed: make(chan struct{}, 1)}
	var err error
	if m.writer, err = session.Here(t.TempDir(), os.Getpid()); err != nil {
		t.Fatal(err)
	}
	return m
}

// agent returns an agent of the mount with these options.
func (m *testMount) agent(o control.SessionOptions) *Agent {
	m.t.Helper()
	var work sync.WaitGroup
	m.t.Cleanup(work.Wait)
	a := New(Config{
		Session: "s", Dir: "/mnt", Writable: true, Log: zap.NewNop(), Tree: m, Removals: m, Git: m, Captures: m,
		Repository: m, Remotes: m, Objects: m,
		Writer: func() (session.Writer, error) { return m.writer, nil },
		Watch: func(string, chan<- struct{}, ...string) (func(), bool, error) {
			return nil, false, errors.New("no watch in tests")
		},
		Background: func(_ string, f func()) { work.Go(f) },
		Followed:   func(context.Context) bool { return false },
	})
	if err := a.Configure(Settings{Home: m.home, GitDir: filepath.Join(m.home, "git"), Store: m, Asked: o}); err != nil {
		m.t.Fatal(err)
	}
	return a
}

// change increases the number of changed paths.
func (m *testMount) change() {
	m.mu.Lock()
	m.changed++
	m.at = time.Now()
	m.mu.Unlock()
	select {
	case m.noticed <- struct{}{}:
	default:
	}
}

func (m *testMount) made() []session.Reason {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]session.Reason{}, m.reasons...)
}

func (m *testMount) Changed() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *testMount) LastChange() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.at
}

func (m *testMount) Noticed() <-chan struct{}                                { return m.noticed }
func (m *testMount) MassRemoval() <-chan struct{}                            { return nil }
func (m *testMount) MassRemoved() (time.Time, bool, bool)                    { return time.Time{}, false, false }
func (m *testMount) Await(ctx context.Context) bool                          { return ctx.Err() == nil }
func (m *testMount) Exists() bool                                            { return false }
func (m *testMount) Untouched() (bool, error)                                { return true, nil }
func (m *testMount) NewCapturer(CaptureRequest) (Capturer, error)            { return m, nil }
func (m *testMount) Last() (session.Checkpoint, bool)                        { return session.Checkpoint{}, false }
func (m *testMount) SetLane(string, int)                                     {}
func (m *testMount) OpenMeta(object.Format) (*session.Repo, error)           { return m.Open() }
func (m *testMount) Session() *thin.Remote                                   { return nil }
func (m *testMount) SessionRef(context.Context, string) (object.ID, error)   { return object.ID{}, nil }
func (m *testMount) Parent() (string, *transport.Remote)                     { return "", nil }
func (m *testMount) OpenOrigin() (*transport.Remote, error)                  { return nil, nil }
func (m *testMount) FetchMeta(context.Context, object.ID, object.ID) error   { return nil }
func (m *testMount) Contents(context.Context) func([]object.ID) error        { return nil }
func (m *testMount) Refs() []packedrefs.Ref                                  { return nil }
func (m *testMount) Provide(context.Context, []object.ID, []object.ID) error { return nil }
func (m *testMount) Missing([]object.ID) []object.ID                         { return nil }
func (m *testMount) FromCache(context.Context, []object.ID) error            { return nil }
func (m *testMount) ReadMeta(context.Context, *transport.Remote, object.ID) (session.Meta, error) {
	return session.Meta{}, nil
}

func (m *testMount) Checkpoint(_ context.Context, reason session.Reason, _ string,
	_ ...capture.Carrying) (session.Checkpoint, capture.Report, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return session.Checkpoint{}, capture.Report{}, m.fails
	}
	m.reasons = append(m.reasons, reason)
	return session.Checkpoint{ID: session.NewCheckpointID(time.Now()), Time: time.Now()}, capture.Report{Made: true}, nil
}

func (m *testMount) Open() (*session.Repo, error) {
	return session.OpenRepo(filepath.Join(m.home, statedir.SessionRepoName),
		session.RepoOptions{Format: object.SHA1, Session: "s"})
}

func (m *testMount) Meta() session.Meta {
	return session.Meta{Session: "s", Remote: "https://example.com/r", Format: object.SHA1.String(), Began: time.Now()}
}

func TestAMountWithoutASessionRemoteMakesNothing(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{Remote: control.RemoteNone})
	if _, err := a.Open(t.Context()); !errors.Is(err, fault.ErrNoSessionRemote) {
		t.Errorf("open the agent: %v", err)
	}
	if s := a.Status(); s.Mode != ModeNone || s.Checkpoints != 0 {
		t.Errorf("status: got %+v", s)
	}
	a.End(EndRequest{Served: true, Opened: true, Keep: true, Reason: session.Unmount})
	if statedir.HasSessionRepo(m.home) {
		t.Error("a session repository was created")
	}
}

func TestTheRepositoryIsOpenUntilTheEnd(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{})
	if err := a.Claim(t.Context(), ClaimOptions{}); err != nil || statedir.HasSessionRepo(m.home) {
		t.Errorf("claim of a session without changes: %v", err)
	}
	one, err := a.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if two, err := a.Open(t.Context()); err != nil || one != two {
		t.Errorf("open the agent again: %v", err)
	}
	m.change()
	if _, made, err := a.Checkpoint(t.Context(), session.Manual, ""); err != nil || !made {
		t.Errorf("checkpoint: got %v, %v", made, err)
	}
	if s := a.Status(); s.Mode != "embedded" || s.Checkpoints != 1 || s.Lane != session.MainLane || s.Dirty ||
		s.LastCheckpoint == "" {
		t.Errorf("status: got %+v", s)
	}
	a.End(EndRequest{Served: true, Opened: true, Keep: true, Reason: session.Unmount})
	if _, err := a.Open(t.Context()); err != nil { // the repository is closed, but the agent still has it in its state
		t.Errorf("open after the end of the agent: %v", err)
	}
	if made := m.made(); len(made) != 2 || made[1] != session.Unmount {
		t.Errorf("reasons of the checkpoints: got %v", made)
	}
	if left := a.Left(); left.Pending != 0 || left.Why != "" {
		t.Errorf("result of the agent's end: got %+v", left)
	}
}

func TestALaneOfAnotherWriterIsRefused(t *testing.T) {
	m := newTestMount(t)
	repo, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	other := session.Writer{Machine: "another", Host: "elsewhere", PID: 1}
	if _, err := session.CreateMeta(t.Context(), repo, m.Meta(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Claim(t.Context(), repo,
		session.ClaimRequest{Session: "s", Writer: other, Actor: "a", Reason: "mounted"}); err != nil {
		t.Fatal(err)
	}
	meta, _, err := session.ReadMeta(repo, "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Close(); err != nil {
		t.Fatal(err)
	}
	a := m.agent(control.SessionOptions{})
	if err := a.Refused(meta); !IsRefusal(err) {
		t.Errorf("check of a session that another writer holds: got %v", err)
	}
	if err := a.Claim(t.Context(), ClaimOptions{Resumed: true}); !IsRefusal(err) {
		t.Errorf("claim of a session that another writer holds: got %v", err)
	}
	b := m.agent(control.SessionOptions{TakeOver: true})
	if err := b.Refused(meta); err != nil {
		t.Errorf("check with take-over: got %v", err)
	}
	if err := b.Claim(t.Context(), ClaimOptions{Resumed: true}); err != nil {
		t.Errorf("claim with take-over: got %v", err)
	}
	b.End(EndRequest{Served: true, Opened: true, Reason: session.Discard})
}

func TestACheckpointIsMadeOnceBeforeARiskyCommand(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{Policy: control.PolicyBeforeRisk})
	defer a.End(EndRequest{Opened: true})
	pid := uint32(os.Getpid())
	a.BeforeGit(t.Context(), pid, []string{"git", "reset", "--hard"})
	if made := m.made(); len(made) != 0 {
		t.Errorf("checkpoints before a risky command without a change: got %v", made)
	}
	m.change()
	a.BeforeGit(t.Context(), 1, []string{"git", "status"})
	a.BeforeGit(t.Context(), 1, []string{"git", "reset", "--hard"})
	a.BeforeGit(t.Context(), 1, []string{"git", "reset", "--hard"})
	if made := m.made(); len(made) != 1 || made[0] != session.BeforeRisk {
		t.Errorf("checkpoints before a reset that asks twice: got %v", made)
	}
}

func TestChangesOfGitAreInACheckpointSoon(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{Policy: control.PolicyBeforeRisk})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Start(ctx, object.SHA1)
	}()
	m.change()
	a.git.refMoved()
	await.Until(t, "a checkpoint is made after a ref moved", func() bool { return len(m.made()) > 0 })
	cancel()
	<-done
	if made := m.made(); made[0] != session.Git {
		t.Errorf("reasons of the checkpoints: got %v", made)
	}
	a.End(EndRequest{Opened: true})
}

// TestStartWaitsForItsTurn checks that a mount that was taken over waits for its turn, and that a command that needs
// the refs of the git directory ends this wait.
func TestStartWaitsForItsTurn(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{})
	waits, ended := make(chan struct{}), make(chan struct{})
	a.turn.take = func(ctx context.Context) func() {
		close(waits)
		<-ctx.Done()
		return func() {}
	}
	if err := a.Flush(t.Context()); err != nil { // before Start, Flush has nothing to wait for
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		a.Start(ctx, object.SHA1)
	}()
	<-waits
	if a.opened().copier != nil {
		t.Error("refs are watched before the turn")
	}
	_ = a.Flush(t.Context()) // returns an error, because the git directory does not exist
	if a.opened().copier == nil {
		t.Error("Flush did not wait until refs are watched")
	}
	cancel()
	<-ended
	a.End(EndRequest{Opened: true})
}

func TestWorkThatCannotBeKeptIsReported(t *testing.T) {
	m := newTestMount(t)
	a := m.agent(control.SessionOptions{})
	m.change()
	m.fails = errors.New("no space")
	err := a.KeepAll(t.Context(), session.Idle)
	var lost UnsavedError
	if !errors.As(err, &lost) || !errors.Is(err, m.fails) {
		t.Errorf("keep the changes: got %v", err)
	}
	if s := a.Status(); s.Error != "create checkpoint: no space" {
		t.Errorf("error in the status: got %q", s.Error)
	}
	a.End(EndRequest{Served: true, Opened: true, Keep: true, Reason: session.Unmount})
	if left := a.Left(); left.Pending != 1 || left.Why == "" {
		t.Errorf("result of the agent's end: got %+v", left)
	}
}
