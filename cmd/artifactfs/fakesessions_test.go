package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// sessionsOf answers with the replies that a test has set, and records the requests.
type sessionsOf struct {
	mu    sync.Mutex
	asked []any

	checkpoint  control.CheckpointReply
	sync        control.SyncReply
	list        []control.SessionInfo
	checkpoints []control.Checkpoint
	show        control.SessionShowReply
	diff        control.SessionDiffReply
	promoted    control.SessionPromoteReply
	summary     control.SessionSummaryReply
	restore     control.RestoreReply
	gc          control.SessionGCReply
	note        control.SessionNoteReply
	threads     []control.AnnotationThread
	records     []control.TranscriptRecord
	diffs       map[string][]control.PathChange // replies of SessionDiff without patch and stat, by "A B"
	undelete    error                           // error of SessionUndelete
	refused     string                          // SessionRecord fails if its first line contains this text
	forked      func(dir string)                // mounts a fork at a directory; may be nil
	noFork      error                           // error of each fork; may be nil
}

func (s *sessionsOf) ask(r any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
}

// set changes the replies.
func (s *sessionsOf) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// answer returns a deep copy of v, because the test may change v while the copy is being sent.
func answer[T any](s *sessionsOf, v *T) (sent T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &sent)
	}
	if err != nil {
		panic(err)
	}
	return sent
}

// last returns the last request.
func last[T any](t *testing.T, s *sessionsOf) (r T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) == 0 {
		t.Fatal("no request was received")
	}
	r, ok := s.asked[len(s.asked)-1].(T)
	if !ok {
		t.Fatalf("last request: got %+v", s.asked[len(s.asked)-1])
	}
	return r
}

func (s *sessionsOf) Checkpoint(_ context.Context, r control.CheckpointRequest,
	_ func(control.Progress)) (control.CheckpointReply, error) {
	s.ask(r)
	return answer(s, &s.checkpoint), nil
}

func (s *sessionsOf) Sync(_ context.Context, r control.SyncRequest,
	_ func(control.Progress)) (control.SyncReply, error) {
	s.ask(r)
	return answer(s, &s.sync), nil
}

func (s *sessionsOf) Sessions(context.Context) (control.SessionsReply, error) {
	return control.SessionsReply{Sessions: answer(s, &s.list)}, nil
}

func (s *sessionsOf) SessionsOn(_ context.Context, r control.SessionsOnRequest) (control.SessionsReply, error) {
	s.ask(r)
	return control.SessionsReply{Sessions: answer(s, &s.list)}, nil
}

func (s *sessionsOf) SessionLog(_ context.Context, r control.SessionLogRequest) (control.SessionLogReply, error) {
	s.ask(r)
	return control.SessionLogReply{Session: "work", Checkpoints: answer(s, &s.checkpoints)}, nil
}

func (s *sessionsOf) SessionShow(_ context.Context, r control.SessionShowRequest) (control.SessionShowReply, error) {
	s.ask(r)
	return answer(s, &s.show), nil
}

func (s *sessionsOf) SessionCompare(context.Context,
	control.SessionCompareRequest) (control.SessionCompareReply, error) {
	return control.SessionCompareReply{}, nil
}

func (s *sessionsOf) SessionPromote(_ context.Context,
	r control.SessionPromoteRequest) (control.SessionPromoteReply, error) {
	s.ask(r)
	return answer(s, &s.promoted), nil
}

func (s *sessionsOf) SessionSummary(_ context.Context,
	r control.SessionSummaryRequest) (control.SessionSummaryReply, error) {
	s.ask(r)
	return answer(s, &s.summary), nil
}

func (s *sessionsOf) SessionDiff(_ context.Context, r control.SessionDiffRequest) (control.SessionDiffReply, error) {
	s.ask(r)
	if changes, ok := answer(s, &s.diffs)[r.A+" "+r.B]; ok && !r.Patch && !r.Stat {
		return control.SessionDiffReply{Changes: changes}, nil
	}
	return answer(s, &s.diff), nil
}

func (s *sessionsOf) Restore(_ context.Context, r control.RestoreRequest,
	_ func(control.Progress)) (control.RestoreReply, error) {
	s.ask(r)
	return answer(s, &s.restore), nil
}

func (s *sessionsOf) Merge(_ context.Context, r control.MergeRequest,
	_ func(control.Progress)) (control.MergeReply, error) {
	s.ask(r)
	return control.MergeReply{Dir: r.Dir}, nil
}

func (s *sessionsOf) Fork(_ context.Context, r control.ForkRequest,
	_ func(control.Progress)) (control.MountReply, error) {
	s.ask(r)
	s.mu.Lock()
	err := s.noFork
	s.mu.Unlock()
	if err != nil {
		return control.MountReply{}, err
	}
	if s.forked != nil {
		s.forked(r.Mount.Dir)
	}
	return control.MountReply{Dir: r.Mount.Dir, Remote: r.Mount.Remote, Session: "copy", Ref: "main", Files: 3}, nil
}

func (s *sessionsOf) SessionSet(_ context.Context, r control.SessionSetRequest) (control.SessionInfo, error) {
	s.ask(r)
	return control.SessionInfo{SessionStatus: control.SessionStatus{Name: "work"}}, nil
}

func (s *sessionsOf) SessionNote(_ context.Context, r control.SessionNoteRequest) (control.SessionNoteReply, error) {
	s.ask(r)
	return answer(s, &s.note), nil
}

func (s *sessionsOf) SessionRecord(_ context.Context,
	r control.SessionRecordRequest) (control.SessionRecordReply, error) {
	s.ask(r)
	if refused := answer(s, &s.refused); refused != "" && strings.Contains(r.Lines[0], refused) {
		return control.SessionRecordReply{}, errors.New("no space left")
	}
	return control.SessionRecordReply{Ref: "refs/afs/transcript/work", Lines: int64(len(r.Lines)), Redacted: 1}, nil
}

func (s *sessionsOf) SessionGC(_ context.Context, r control.SessionGCRequest,
	_ func(control.Progress)) (control.SessionGCReply, error) {
	s.ask(r)
	return answer(s, &s.gc), nil
}

func (s *sessionsOf) SessionDelete(_ context.Context,
	r control.SessionDeleteRequest) (control.SessionDeleteReply, error) {
	s.ask(r)
	return control.SessionDeleteReply{Session: "work", Local: r.Remote == "", Refs: 3, Kept: []string{"refs/heads/main"},
		Until: time.Now().Add(time.Hour)}, nil
}

func (s *sessionsOf) SessionUndelete(_ context.Context,
	r control.SessionUndeleteRequest) (control.SessionDeleteReply, error) {
	s.ask(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	return control.SessionDeleteReply{Session: r.Session, Local: true, Refs: 3}, s.undelete
}

func (s *sessionsOf) SessionAnnotate(_ context.Context,
	r control.SessionAnnotateRequest) (control.SessionAnnotateReply, error) {
	s.ask(r)
	return control.SessionAnnotateReply{Session: "work", ID: checkpointA,
		Thread: control.AnnotationThread{ID: checkpointB}, Redacted: 1}, nil
}

func (s *sessionsOf) SessionAnnotations(_ context.Context,
	r control.SessionAnnotationsRequest) (control.SessionAnnotationsReply, error) {
	s.ask(r)
	return control.SessionAnnotationsReply{Session: "work", Threads: s.threads}, nil
}

func (s *sessionsOf) SessionTrash(_ context.Context, r control.SessionTrashRequest) (control.SessionTrashReply, error) {
	s.ask(r)
	return control.SessionTrashReply{Deleted: []control.DeletedSession{{Name: "old", Remote: "/r.git",
		At: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}}}, nil
}

func (s *sessionsOf) SessionApprove(_ context.Context,
	r control.SessionApproveRequest) (control.SessionApproveReply, error) {
	s.ask(r)
	a := control.Approval{ID: "01M80Q4ZJ3W6E5S8B8W2ZQ6T7K", Session: "work", Repository: "https://h/r.git",
		Action: cmp.Or(r.Action, "merge"), Branch: "main",
		Status: "open", Missing: "1 more approval", Actor: "agent"}
	return control.SessionApproveReply{Approval: a, Changes: control.ChangeCount{Added: 1, LinesAdded: 2}, Actor: r.Actor,
		Link: "https://h/r.git#session=work@" + a.ID, Show: "https://h/r.git#session=work@01M80Q4Z50EZKC5YR3HTMPRYYQ",
		To: r.To}, nil
}

func (s *sessionsOf) SessionApprovals(_ context.Context,
	r control.SessionApprovalsRequest) (control.SessionApprovalsReply, error) {
	s.ask(r)
	return control.SessionApprovalsReply{Session: "work", Approvals: []control.Approval{
		{ID: "01M80Q4ZJ4", Action: "merge", Branch: "main", Status: "granted", Grants: []control.Vote{{Actor: "bob"}},
			Expires: time.Now().Add(time.Hour)},
		{ID: "01M80Q4ZJ3", Action: "merge", Branch: "main", Status: "void"},
	}}, nil
}

func (s *sessionsOf) SessionPolicy(_ context.Context,
	r control.SessionPolicyRequest) (control.SessionPolicyReply, error) {
	s.ask(r)
	return control.SessionPolicyReply{Repository: "https://h/r.git", Policy: `{"version":2}`,
		Problem: "version 2 is not known"}, nil
}

func (s *sessionsOf) SessionTranscript(_ context.Context,
	r control.SessionTranscriptRequest) (control.SessionTranscriptReply, error) {
	s.ask(r)
	return control.SessionTranscriptReply{Session: "work", Records: answer(s, &s.records)}, nil
}

func (s *sessionsOf) SessionErase(_ context.Context, r control.SessionEraseRequest) (control.SessionEraseReply, error) {
	s.ask(r)
	return control.SessionEraseReply{}, nil
}

func (s *sessionsOf) SessionFacts(_ context.Context, r control.SessionFactsRequest) (control.SessionFactsReply, error) {
	s.ask(r)
	return control.SessionFactsReply{}, nil
}

func (s *sessionsOf) CacheGet(_ context.Context, r control.CacheGetRequest) (control.CacheGetReply, error) {
	s.ask(r)
	return control.CacheGetReply{Entry: control.CacheEntry{Key: r.Key}}, os.WriteFile(r.Output, []byte("value"), 0o600)
}

func (s *sessionsOf) CachePut(_ context.Context, r control.CachePutRequest) (control.CacheChangeReply, error) {
	text, err := os.ReadFile(r.File)
	r.File, r.Value = "", text
	s.ask(r)
	return control.CacheChangeReply{Done: r.Expect == "", Entry: &control.CacheEntry{Key: r.Key, Hash: "ab"}}, err
}

func (s *sessionsOf) CacheDelete(_ context.Context, r control.CacheDeleteRequest) (control.CacheChangeReply, error) {
	s.ask(r)
	return control.CacheChangeReply{Done: r.Expect == ""}, nil
}

func (s *sessionsOf) CacheKeys(_ context.Context, r control.CacheKeysRequest) (control.CacheKeysReply, error) {
	s.ask(r)
	key := "a"
	if r.After != "" {
		key = "b\x1b"
	}
	at := time.Now().Add(-2 * time.Hour)
	return control.CacheKeysReply{Entries: []control.CacheEntry{{Key: key, Size: 3, Actor: "n", Time: at}}, Damaged: 2,
		More: r.After == ""}, nil
}

func (s *sessionsOf) CacheGC(_ context.Context, r control.CacheGCRequest) (control.CacheGCReply, error) {
	s.ask(r)
	return control.CacheGCReply{Count: 2, Bytes: 3 << 20, Damaged: 1, Kept: 1, Size: 10}, nil
}

const checkpointA, checkpointB = "01J9ZK3V9Q2M4N6P8R0T1V3X5Z", "01J9ZK4W0R3N5P7Q9S1V2X4Y60"

// newWork serves a session that is mounted in the directory app.
func newWork(t *testing.T) (*afs, *sessionsOf, *fakeDaemon) {
	t.Helper()
	a, s := newAfs(t), &sessionsOf{}
	dir := filepath.Join(a.dir, "app")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := mountStatus(dir)
	m.Session.Name = "work"
	f := newFakeDaemon(m)
	f.fakeSessions = s
	serve(t, control.DaemonSocket(a.state), f)
	return a, s, f
}
