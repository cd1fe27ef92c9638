package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// A program that imports this package needs the artifactfs program in $PATH and nothing else: the daemon is started if
// none runs.
func ExampleEnsure() {
	ctx := context.Background()
	client, err := control.Ensure(ctx, control.Launch{})
	if err != nil {
		log.Fatal(err)
	}
	m, err := client.Mount(ctx, control.MountRequest{Remote: "https://git.example/app.git", Dir: "/srv/app"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("mounted at", m.Dir)
}

func ExampleDial() {
	state, err := control.StateDir("")
	if err != nil {
		log.Fatal(err)
	}
	client, err := control.Dial(context.Background(), control.DaemonSocket(state))
	if errors.Is(err, control.ErrNoServer) {
		fmt.Println("nothing is mounted")
		return
	}
	_ = client
}

func ExampleAsError() {
	client, end := fakeDaemon()
	defer end()
	_, err := client.Unmount(context.Background(), control.UnmountRequest{Dir: "/srv/other"})
	e := control.AsError(err)
	fmt.Println(e)
	fmt.Println(e.ErrorCode(), e.ErrorCode().Retryable(), e.Hint)
	// Output:
	// unmount /srv/other: nothing is mounted there
	// not-mounted false run artifactfs list to see the mounted directories
}

func ExampleClient_Mount() {
	client, end := fakeDaemon()
	defer end()
	m, err := client.Mount(context.Background(), control.MountRequest{
		Remote:  "https://git.example/app.git",
		Dir:     "/srv/app", // absolute
		Session: "fix-login",
	}, func(p control.Progress) { log.Println(p.Phase, p.Done, p.Total) })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Dir, m.Ref, m.Session)
	// Output: /srv/app main fix-login
}

func ExampleClient_Unmount() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Unmount(context.Background(), control.UnmountRequest{Dir: "/srv/app", Timeout: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session, r.Pending)
	// Output: fix-login 0
}

func ExampleClient_Status() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Status(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range r.Mounts {
		fmt.Println(m.Dir, m.State, m.Session.Name)
	}
	// Output: /srv/app mounted fix-login
}

func ExampleClient_Mounts() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Mounts(context.Background(), control.MountsRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(r.Mounts), r.Mounts[0].Dir)
	// Output: 1 /srv/app
}

func ExampleClient_Prefetch() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Prefetch(context.Background(),
		control.PrefetchRequest{Dir: "/srv/app", Paths: []string{"services/api"}, Wait: true}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Fetched, "of", r.Matched)
	// Output: 7 of 7
}

func ExampleClient_Switch() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Switch(context.Background(), control.SwitchRequest{Dir: "/srv/app", Ref: "next"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Branch, r.Paths)
	// Output: next 3
}

func ExampleClient_Refresh() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Refresh(context.Background(), control.RefreshRequest{Dir: "/srv/app"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Branch, r.Moved, r.Paths)
	// Output: main true 3
}

func ExampleClient_SetCredential() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SetCredential(context.Background(),
		control.CredentialRequest{Dir: "/srv/app", TokenFile: "/run/secrets/git-token"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Remote, r.Mounts)
	// Output: https://git.example/app.git [/srv/app]
}

func ExampleClient_Trace() {
	client, end := fakeDaemon()
	defer end()
	err := client.Trace(context.Background(), control.TraceRequest{Dir: "/srv/app"}, func(t control.Trace) error {
		for _, e := range t.Events {
			fmt.Println(e.Op, e.Path, e.Source)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: read go.mod fetched
}

func ExampleClient_Upgrade() {
	client, end := fakeDaemon()
	defer end()
	err := client.Upgrade(context.Background(), control.UpgradeRequest{Executable: "/usr/local/bin/artifactfs"})
	if errors.Is(err, control.ErrNoServer) {
		fmt.Println("the new version takes over") // the process that was asked has ended
		return
	}
	fmt.Println(control.AsError(err).ErrorCode())
	// Output: unsupported
}

func ExampleClient_Shutdown() {
	client, end := fakeDaemon()
	defer end()
	if err := client.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	_, err := client.Status(context.Background())
	fmt.Println(errors.Is(err, control.ErrNoServer))
	// Output: true
}

func ExampleClient_Checkpoint() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Checkpoint(context.Background(),
		control.CheckpointRequest{Dir: "/srv/app", Message: "before the clean-up", Sync: true}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.ID, r.Synced)
	// Output: 01M80Q4Z50EZKC5YR3HTMPRYYQ true
}

func ExampleClient_Sync() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Sync(context.Background(), control.SyncRequest{Dir: "/srv/app", Timeout: time.Minute}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session.Pending)
	// Output: 0
}

func ExampleClient_Sessions() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Sessions(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Sessions[0].Name)
	// Output: fix-login
}

func ExampleClient_SessionsOn() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionsOn(context.Background(),
		control.SessionsOnRequest{SessionRemote: "https://git.example/work.git"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Sessions[0].Name)
	// Output: fix-login
}

func ExampleClient_SessionLog() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionLog(context.Background(), control.SessionLogRequest{Of: "fix-login", Limit: 10})
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range r.Checkpoints {
		fmt.Println(p.ID, p.Message)
	}
	// Output: 01M80Q4Z50EZKC5YR3HTMPRYYQ before the clean-up
}

func ExampleClient_SessionShow() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionShow(context.Background(), control.SessionShowRequest{Of: "/srv/app"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.ID, r.Changes[0].Status, r.Changes[0].Path)
	// Output: 01M80Q4Z50EZKC5YR3HTMPRYYQ M main.go
}

func ExampleClient_SessionCompare() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionCompare(context.Background(),
		control.SessionCompareRequest{Sides: []control.CompareSide{{Of: "try-1"}, {Of: "try-2"}}})
	for _, p := range r.Shared {
		fmt.Println(p.Path, p.Verdict, err)
	}
	// Output: main.c conflict <nil>
}

func ExampleSessionPromote() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.SessionPromote(context.Background(), client,
		control.SessionPromoteRequest{Of: "/srv/app", Branch: "main", Method: control.PromoteSquash})
	fmt.Println(r.Total, "commits to", r.Branch, "by", r.Method, err)
	// Output: 3 commits to main by squash <nil>
}

func ExampleSessionSummary() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.SessionSummary(context.Background(), client, control.SessionSummaryRequest{Of: "/srv/app"})
	fmt.Println(r.Title, r.Files[0].Path, r.Files[0].Added, r.Files[0].Removed, err)
	// Output: fix login main.go 2 1 <nil>
}

func ExampleClient_SessionDiff() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionDiff(context.Background(), control.SessionDiffRequest{Of: "/srv/app", A: "@~1", B: "@"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Changes[0].Status, r.Changes[0].Path)
	// Output: M main.go
}

func ExampleClient_Restore() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Restore(context.Background(),
		control.RestoreRequest{Dir: "/srv/app", ID: "@~1", Paths: []string{"main.go"}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(r.Changes), "changed;", r.Before.ID, "undoes it")
	// Output: 1 changed; 01M80Q4Z9W7XA3V6MEZKGN8CE9 undoes it
}

func ExampleClient_Merge() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Merge(context.Background(), control.MergeRequest{Dir: "/srv/app", Of: "try-2"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Conflicts)
	// Output: [src/login.c]
}

func ExampleClient_Fork() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.Fork(context.Background(), control.ForkRequest{Of: "fix-login", ID: "@",
		Mount: control.MountRequest{Dir: "/srv/try", Session: "try"}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Dir, r.Session)
	// Output: /srv/try try
}

func ExampleClient_SessionSet() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionSet(context.Background(),
		control.SessionSetRequest{Of: "fix-login", State: "closed", Reason: "merged"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Name, r.State)
	// Output: fix-login closed
}

func ExampleClient_SessionNote() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionNote(context.Background(),
		control.SessionNoteRequest{Dir: "/srv/app", JSON: json.RawMessage(`{"task":"fix login"}`)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Ref, r.Redacted)
	// Output: refs/notes/agent 0
}

func ExampleClient_SessionTranscript() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionTranscript(context.Background(), control.SessionTranscriptRequest{Of: "fix-login", Turn: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session, len(r.Records))
	// Output: fix-login 0
}

func ExampleClient_SessionErase() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionErase(context.Background(),
		control.SessionEraseRequest{Of: "fix-login", Records: []string{"01M80Q4Z50EZKC5YR3HTMPRYYQ"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session, r.Erased)
	// Output: fix-login [01M80Q4Z50EZKC5YR3HTMPRYYQ]
}

func ExampleClient_SessionFacts() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionFacts(context.Background(), control.SessionFactsRequest{Of: "fix-login"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session, len(r.Facts))
	// Output: fix-login 0
}

func ExampleClient_SessionRecord() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionRecord(context.Background(),
		control.SessionRecordRequest{Dir: "/srv/app", Lines: []string{`{"role":"user","text":"fix the login"}`}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Lines, r.Ref)
	// Output: 1 refs/afs/transcript/fix-login
}

func ExampleClient_SessionDelete() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionDelete(context.Background(), control.SessionDeleteRequest{Of: "fix-login"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session, r.Refs)
	// Output: fix-login 12
}

func ExampleClient_SessionUndelete() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionUndelete(context.Background(), control.SessionUndeleteRequest{Session: "fix-login"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Session, r.Local)
	// Output: fix-login true
}

func ExampleClient_SessionTrash() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionTrash(context.Background(), control.SessionTrashRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Deleted[0].Name)
	// Output: fix-login
}

func ExampleClient_SessionApprove() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionApprove(context.Background(), control.SessionApproveRequest{
		Of: "fix-login", Op: control.ApproveRequest, Action: control.ApproveMerge, Branch: "main"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Approval.Status, r.Approval.Missing)
	// Output: open 1 more approval
}

func ExampleClient_SessionApprovals() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionApprovals(context.Background(), control.SessionApprovalsRequest{Of: "fix-login"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Approvals[0].Action, r.Approvals[0].Branch, r.Approvals[0].Status)
	// Output: merge main granted
}

func ExampleClient_SessionPolicy() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionPolicy(context.Background(),
		control.SessionPolicyRequest{Remote: "https://git.example.org/app.git"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Policy)
	// Output: {"version":1}
}

func ExampleClient_SessionAnnotate() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionAnnotate(context.Background(),
		control.SessionAnnotateRequest{Of: "fix-login", Op: control.AnnotateOpen,
			Path: "main.go", Line: 12, Text: "is this loop needed?", Actor: "alice"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.ID, r.Thread.On.Path, r.Thread.State)
	// Output: 01M80Q5KQ2X1JX7V3S2R3N4T5W main.go open
}

func ExampleClient_SessionAnnotations() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionAnnotations(context.Background(), control.SessionAnnotationsRequest{Of: "fix-login", ID: "@"})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range r.Threads {
		fmt.Println(t.Now.Path, t.Now.Line, t.Annotations[0].Text)
	}
	// Output: main.go 14 is this loop needed?
}

func ExampleClient_SessionGC() {
	client, end := fakeDaemon()
	defer end()
	r, err := client.SessionGC(context.Background(), control.SessionGCRequest{Of: "fix-login", DryRun: true}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Kept, len(r.Dropped))
	// Output: 12 1
}

func ExampleCacheClient_Get() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.NewCacheClient(client).Get(context.Background(),
		control.CacheGetRequest{Of: "fix-login", Key: "test/1"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(r.Value))
	// Output: ok
}

func ExampleCacheClient_Put() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.NewCacheClient(client).Put(context.Background(),
		control.CachePutRequest{Of: "fix-login", Key: "test/1", Value: []byte("ok\n"), Expect: "none"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Done, r.Entry.Size)
	// Output: true 3
}

func ExampleCacheClient_Delete() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.NewCacheClient(client).Delete(context.Background(),
		control.CacheDeleteRequest{Of: "fix-login", Key: "test/1"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Done)
	// Output: true
}

func ExampleCacheClient_Keys() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.NewCacheClient(client).Keys(context.Background(),
		control.CacheKeysRequest{SessionRemote: "/srv/work.git", Prefix: "test/"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Entries[0].Key)
	// Output: test/1
}

func ExampleCacheClient_GC() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.NewCacheClient(client).GC(context.Background(),
		control.CacheGCRequest{Of: "fix-login", MaxSize: 1 << 30})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Count, r.Bytes, r.Kept)
	// Output: 1 3 2
}

func ExampleSessionLocks() {
	client, end := fakeDaemon()
	defer end()
	r, err := control.SessionLocks(context.Background(), client,
		control.SessionLocksRequest{Of: "fix-login", Op: control.LockAcquire,
			Patterns: []string{"src/login.c"}, Reason: "new login"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Locks[0].Session, "has locked", r.Locks[0].Pattern)
	// Output: fix-login has locked src/login.c
}
