package control_test

import (
	"context"
	"log"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
)

// fakeDaemon serves a daemon that has one mount and does nothing.
func fakeDaemon() (client *control.Client, end func()) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	socket := filepath.Join(dir, "daemon.sock")
	server, err := control.Listen(ctx, socket, daemon{}, zap.NewNop())
	if err != nil {
		log.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { server.Serve(ctx); close(ended) }()
	if client, err = control.Dial(ctx, socket); err != nil {
		log.Fatal(err)
	}
	return client, func() { cancel(); <-ended; os.RemoveAll(dir) }
}

// daemon answers every request as if one session were mounted at /srv/app.
type daemon struct{}

var (
	_ control.Handler  = daemon{}
	_ control.Sessions = daemon{}
)

var (
	checkpoint = control.Checkpoint{ID: "01M80Q4Z50EZKC5YR3HTMPRYYQ", Session: "fix-login",
		Message: "before the clean-up", Synced: true}
	before   = control.Checkpoint{ID: "01M80Q4Z9W7XA3V6MEZKGN8CE9", Session: "fix-login"}
	changes  = []control.PathChange{{Path: "main.go", Status: "M"}}
	theMount = control.MountStatus{ID: "m1", Dir: "/srv/app", State: control.StateMounted,
		Session: control.SessionStatus{Name: "fix-login"}}
)

type report = func(control.Progress)

func (daemon) Mount(_ context.Context, r control.MountRequest, _ report) (control.MountReply, error) {
	return control.MountReply{Dir: r.Dir, Ref: "main", Session: r.Session}, nil
}

func (daemon) Unmount(_ context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	if r.Dir != theMount.Dir {
		return control.UnmountReply{}, &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotMounted,
			Verb: "unmount", Object: r.Dir,
			Cause: "nothing is mounted there", Hint: "run artifactfs list to see the mounted directories"}
	}
	return control.UnmountReply{Dir: r.Dir, Session: "fix-login"}, nil
}

func (daemon) Status(context.Context) (control.Status, error) {
	return control.Status{Mounts: []control.MountStatus{theMount}}, nil
}

func (daemon) Prefetch(context.Context, control.PrefetchRequest, report) (control.PrefetchReply, error) {
	return control.PrefetchReply{Matched: 7, Fetched: 7}, nil
}

func (daemon) Switch(_ context.Context, r control.SwitchRequest, _ report) (control.SwitchReply, error) {
	return control.SwitchReply{Dir: r.Dir, Branch: r.Ref, Paths: 3}, nil
}

func (daemon) Refresh(_ context.Context, r control.RefreshRequest, _ report) (control.RefreshReply, error) {
	return control.RefreshReply{Dir: r.Dir, Branch: "main", Follows: true, Moved: true, Paths: 3}, nil
}

func (daemon) Trace(_ context.Context, _ control.TraceRequest, emit func(control.Trace) error) error {
	return emit(control.Trace{Events: []control.TraceEvent{{Op: "read", Path: "go.mod", Source: control.TraceFetched}}})
}

func (daemon) Shutdown(context.Context) error { return nil }

func (daemon) Checkpoint(context.Context, control.CheckpointRequest, report) (control.CheckpointReply, error) {
	return control.CheckpointReply{Checkpoint: checkpoint, Made: true}, nil
}

func (daemon) Sync(_ context.Context, r control.SyncRequest, _ report) (control.SyncReply, error) {
	return control.SyncReply{Dir: r.Dir, Session: theMount.Session}, nil
}

func (daemon) Sessions(context.Context) (control.SessionsReply, error) {
	return control.SessionsReply{Sessions: []control.SessionInfo{{SessionStatus: theMount.Session}}}, nil
}

func (daemon) Merge(_ context.Context, r control.MergeRequest, _ func(control.Progress)) (control.MergeReply, error) {
	return control.MergeReply{Dir: r.Dir, Conflicts: []string{"src/login.c"}}, nil
}

func (d daemon) SessionsOn(ctx context.Context, _ control.SessionsOnRequest) (control.SessionsReply, error) {
	return d.Sessions(ctx)
}

func (daemon) SessionLog(context.Context, control.SessionLogRequest) (control.SessionLogReply, error) {
	return control.SessionLogReply{Session: "fix-login", Checkpoints: []control.Checkpoint{checkpoint}}, nil
}

func (daemon) SessionShow(context.Context, control.SessionShowRequest) (control.SessionShowReply, error) {
	return control.SessionShowReply{Checkpoint: checkpoint, Changes: changes}, nil
}

func (daemon) SessionCompare(context.Context, control.SessionCompareRequest) (control.SessionCompareReply, error) {
	return control.SessionCompareReply{Shared: []control.SharedPath{{Path: "main.c", Status: []string{"M", "M"},
		Verdict: control.VerdictConflict,
		Pairs:   []control.SharedPair{{A: 0, B: 1, Verdict: control.VerdictConflict}}}}}, nil
}

func (daemon) SessionPromote(_ context.Context, r control.SessionPromoteRequest) (control.SessionPromoteReply, error) {
	return control.SessionPromoteReply{Session: "fix-login", Branch: r.Branch, Method: r.Method, Total: 3}, nil
}

func (daemon) SessionSummary(context.Context, control.SessionSummaryRequest) (control.SessionSummaryReply, error) {
	return control.SessionSummaryReply{Session: "fix-login", Title: "fix login",
		Files: []control.SummaryFile{{Path: "main.go", Status: "M", Added: 2, Removed: 1}}}, nil
}

func (daemon) SessionDiff(context.Context, control.SessionDiffRequest) (control.SessionDiffReply, error) {
	return control.SessionDiffReply{Changes: changes}, nil
}

func (daemon) Restore(_ context.Context, r control.RestoreRequest, _ report) (control.RestoreReply, error) {
	return control.RestoreReply{Dir: r.Dir, Checkpoint: checkpoint, Before: &before, Changes: changes}, nil
}

func (daemon) Fork(_ context.Context, r control.ForkRequest, _ report) (control.MountReply, error) {
	return control.MountReply{Dir: r.Mount.Dir, Session: r.Mount.Session}, nil
}

func (daemon) SessionSet(_ context.Context, r control.SessionSetRequest) (control.SessionInfo, error) {
	return control.SessionInfo{SessionStatus: control.SessionStatus{Name: r.Of, State: r.State}}, nil
}

func (daemon) SessionNote(_ context.Context, r control.SessionNoteRequest) (control.SessionNoteReply, error) {
	return control.SessionNoteReply{Ref: "refs/notes/" + r.Ref}, nil
}

func (daemon) SessionRecord(_ context.Context, r control.SessionRecordRequest) (control.SessionRecordReply, error) {
	return control.SessionRecordReply{Ref: "refs/afs/transcript/fix-login", Lines: int64(len(r.Lines))}, nil
}

func (daemon) SessionTranscript(_ context.Context,
	r control.SessionTranscriptRequest) (control.SessionTranscriptReply, error) {
	return control.SessionTranscriptReply{Session: r.Of}, nil
}

func (daemon) SessionErase(_ context.Context, r control.SessionEraseRequest) (control.SessionEraseReply, error) {
	return control.SessionEraseReply{Session: r.Of, Erased: r.Records}, nil
}

func (daemon) SessionFacts(_ context.Context, r control.SessionFactsRequest) (control.SessionFactsReply, error) {
	return control.SessionFactsReply{Session: r.Of}, nil
}

func (daemon) SessionGC(context.Context, control.SessionGCRequest, report) (control.SessionGCReply, error) {
	return control.SessionGCReply{Session: "fix-login", Kept: 12, Dropped: []control.Checkpoint{before}, DryRun: true}, nil
}

func (daemon) SetCredential(_ context.Context, r control.CredentialRequest) (control.CredentialReply, error) {
	return control.CredentialReply{Dir: r.Dir, Remote: "https://git.example/app.git", Checked: true,
		Mounts: []string{r.Dir}}, nil
}

func (daemon) SessionDelete(_ context.Context, r control.SessionDeleteRequest) (control.SessionDeleteReply, error) {
	return control.SessionDeleteReply{Session: r.Of, Local: true, Refs: 12}, nil
}

func (daemon) SessionUndelete(_ context.Context, r control.SessionUndeleteRequest) (control.SessionDeleteReply, error) {
	return control.SessionDeleteReply{Session: r.Session, Local: true, Refs: 12}, nil
}

func (daemon) SessionAnnotate(_ context.Context,
	r control.SessionAnnotateRequest) (control.SessionAnnotateReply, error) {
	const id = "01M80Q5KQ2X1JX7V3S2R3N4T5W"
	return control.SessionAnnotateReply{Session: "fix-login", ID: id,
		Thread: control.AnnotationThread{ID: id, State: "open",
			On:          control.AnnotationPlace{Checkpoint: checkpoint.ID, Path: r.Path, Line: r.Line, End: r.Line},
			Annotations: []control.Annotation{{ID: id, Actor: r.Actor, Op: r.Op, Text: r.Text}}}}, nil
}

func (d daemon) SessionAnnotations(ctx context.Context,
	_ control.SessionAnnotationsRequest) (control.SessionAnnotationsReply, error) {
	a, err := d.SessionAnnotate(ctx, control.SessionAnnotateRequest{Op: control.AnnotateOpen, Path: "main.go", Line: 12,
		Text: "is this loop needed?"})
	a.Thread.Now = &control.AnnotationPlace{State: "moved", Path: "main.go", Line: 14, End: 14}
	return control.SessionAnnotationsReply{Session: "fix-login", Checkpoint: checkpoint.ID,
		Threads: []control.AnnotationThread{a.Thread}}, err
}

func (daemon) SessionTrash(context.Context, control.SessionTrashRequest) (control.SessionTrashReply, error) {
	return control.SessionTrashReply{Deleted: []control.DeletedSession{{Name: "fix-login"}}}, nil
}

func (daemon) SessionApprove(_ context.Context, r control.SessionApproveRequest) (control.SessionApproveReply, error) {
	return control.SessionApproveReply{Approval: control.Approval{ID: "01M80Q4ZJ3W6E5S8B8W2ZQ6T7K", Session: r.Of,
		Action: r.Action, Status: "open",
		Missing: "1 more approval"}}, nil
}

func (daemon) SessionApprovals(_ context.Context,
	r control.SessionApprovalsRequest) (control.SessionApprovalsReply, error) {
	return control.SessionApprovalsReply{Session: r.Of,
		Approvals: []control.Approval{{Action: "merge", Branch: "main", Status: "granted"}}}, nil
}

func (daemon) SessionPolicy(_ context.Context, r control.SessionPolicyRequest) (control.SessionPolicyReply, error) {
	return control.SessionPolicyReply{Repository: r.Remote, Policy: `{"version":1}`}, nil
}

func (daemon) SessionLocks(_ context.Context, r control.SessionLocksRequest) (control.SessionLocksReply, error) {
	l := control.SessionLock{ID: "01M80Q4ZJ3W6E5S8B8W2ZQ6T7K", Session: r.Of, Pattern: r.Patterns[0], Mine: true}
	return control.SessionLocksReply{Session: r.Of, Mode: "refuse", Locks: []control.SessionLock{l},
		Done: []control.SessionLock{l}}, nil
}

// entry is the cache entry of the examples.
var entry = control.CacheEntry{Key: "test/1", Size: 3, Hash: "ab12"}

func (daemon) CacheGet(context.Context, control.CacheGetRequest) (control.CacheGetReply, error) {
	return control.CacheGetReply{Entry: entry, Value: []byte("ok\n")}, nil
}

func (daemon) CachePut(context.Context, control.CachePutRequest) (control.CacheChangeReply, error) {
	return control.CacheChangeReply{Done: true, Entry: &entry}, nil
}

func (daemon) CacheDelete(context.Context, control.CacheDeleteRequest) (control.CacheChangeReply, error) {
	return control.CacheChangeReply{Done: true}, nil
}

func (daemon) CacheKeys(context.Context, control.CacheKeysRequest) (control.CacheKeysReply, error) {
	return control.CacheKeysReply{Entries: []control.CacheEntry{entry}}, nil
}

func (daemon) CacheGC(context.Context, control.CacheGCRequest) (control.CacheGCReply, error) {
	return control.CacheGCReply{Count: 1, Bytes: 3, Kept: 2}, nil
}
