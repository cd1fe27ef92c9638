package control

import (
	"encoding/json"
	"reflect"
	"testing"
)

func FuzzRequest(f *testing.F) {
	r := mountRequest("/m")
	r.Token = "t"
	for o, args := range map[op]any{
		opMount: r, opUnmount: UnmountRequest{Dir: "/m"}, opStatus: empty{}, opShutdown: empty{},
		opPrefetch:   PrefetchRequest{Dir: "/m", Paths: []string{"a", "b/*"}, Wait: true},
		opCheckpoint: CheckpointRequest{Dir: "/m", Message: "m", Pin: "p", Sync: true},
		opSync:       SyncRequest{Dir: "/m", Timeout: 1}, opSessions: empty{},
		opSessionLog: SessionLogRequest{Of: "s", Limit: 1}, opSessionShow: SessionShowRequest{Of: "/m", ID: "@"},
		opSessionCompare: SessionCompareRequest{Sides: []CompareSide{{Of: "a", SessionRemote: "/r", ID: "@"}, {Of: "b"}},
			Dir: "/m"},
		opSessionPromote: SessionPromoteRequest{Of: "s", ID: "@", To: "/r", Branch: "main", PullRequest: true,
			PullBranch: "b", Method: PromoteSquash, Message: "m", Identity: []string{"GIT_AUTHOR_NAME=a"}, DryRun: true},
		opSessionSummary: SessionSummaryRequest{Of: "s", ID: "@", Since: "@~1", Committed: true},
		opSessionDiff:    SessionDiffRequest{Of: "s", A: "@~1", B: "@", AOf: "t", ARemote: "/r", Patch: true, Stat: true},
		opSessionsOn:     SessionsOnRequest{SessionRemote: "https://git.example/work.git"},
		opRestore:        RestoreRequest{Dir: "/m", ID: "@", Paths: []string{"a"}, Staged: true, DryRun: true},
		opFork:           ForkRequest{Of: "s", ID: "@", Mount: r},
		opSessionSet: SessionSetRequest{Of: "s", State: "closed", Reason: "r", Actor: "a", Pin: "p",
			ID: "@", Unpin: true},
		opSessionNote:   SessionNoteRequest{Dir: "/m", Commit: "HEAD", Ref: "agent", JSON: json.RawMessage(`{"a":1}`)},
		opSessionRecord: SessionRecordRequest{Dir: "/m", Lines: []string{`{}`}},
		opSessionGC:     SessionGCRequest{Of: "s", DryRun: true, All: 1, Daily: 2},
		opSessionDelete: SessionDeleteRequest{Of: "s", Remote: "/r", TakeOver: true},
		opSessionBack:   SessionUndeleteRequest{Session: "s"}, opSessionTrash: SessionTrashRequest{Remote: "/r"},
		opSessionApprove: SessionApproveRequest{Of: "s", Op: ApproveRequest, ID: "@", Action: ApproveMerge, Branch: "main",
			Reviewers: []string{"a"}, Expires: 1},
		opSessionApprovals:  SessionApprovalsRequest{Of: "s", SessionRemote: "/r", To: "/t"},
		opSessionPolicy:     SessionPolicyRequest{Remote: "/r", Policy: new(string)},
		opSessionTranscript: SessionTranscriptRequest{Of: "s", Turn: 1},
		opSessionErase:      SessionEraseRequest{Of: "s", Records: []string{"r"}},
		opSessionFacts:      SessionFactsRequest{Of: "s", Add: []string{"f"}},
		opSessionAnnotate: SessionAnnotateRequest{Of: "s", SessionRemote: "/r", Op: "open", ID: "@", Path: "a/b", Line: 1,
			End: 2, Text: "t", Actor: "a"},
		opSessionAnnotations: SessionAnnotationsRequest{Of: "/m", ID: "@", All: true, Path: "a"},
		opCacheGet:           CacheGetRequest{Of: "s", Key: "k", Output: "/o"},
		opCachePut:           CachePutRequest{SessionRemote: "/r", Key: "k", Value: []byte("v"), TTL: 1, Expect: "none"},
		opCacheDelete:        CacheDeleteRequest{Of: "/m", Key: "k", Expect: "ab"},
		opCacheKeys:          CacheKeysRequest{Of: "s", Prefix: "k", Expired: true, After: "k1"},
		opCacheGC:            CacheGCRequest{Of: "s", MaxSize: 1, MaxAge: 2, DryRun: true},
	} {
		line, err := encodeRequest(o, args)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line[:len(line)-1])
	}
	f.Add([]byte(`{"version":6,"op":{}}`))
	f.Add([]byte(`{"version":9,"op":"mount","args":{"remote":"r","dir":"/m","session_options":{"new":1},"other":[]},"needs":["x"]}`))
	f.Add([]byte(`{"version":6,"op":"unmount","args":{"dir":"/a","dir":"b"}}`))
	f.Add([]byte(`{"version":6,"op":"status","args":null}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		a, err := decodeRequest(line)
		if err != nil {
			if AsError(err).Code != ExitUsage {
				t.Errorf("request was refused with %#v", err)
			}
			return
		}
		// An accepted request that is encoded and decoded again is the same.
		again, err := encodeRequest(a.op, a.args)
		if err != nil {
			t.Skip("grew over the limit by quoting")
		}
		b, err := decodeRequest(again[:len(again)-1])
		if err != nil || b.op != a.op || !reflect.DeepEqual(a.args, b.args) {
			t.Errorf("%s\nwas read as %+v, then as %+v (%v)", line, a, b, err)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, m := range []message{
		{Version: 1, Progress: &Progress{Phase: "trees", Done: 1, Total: 2, Unit: "objects"}},
		{Version: 1, Result: json.RawMessage(`{"mounts":[{"since":"2024-01-02T03:04:05Z"}]}`)},
		{Version: 1, Error: &Error{Code: 3, Verb: "mount", Object: "/m", Cause: "refused", Hint: "h"}},
		{Version: 2},
	} {
		line, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := decodeMessage(line)
		if err != nil || m.Version != Protocol || m.Trace != nil {
			return
		}
		if (m.Progress == nil) == (m.Result == nil && m.Error == nil) {
			t.Errorf("%s: reply was accepted as %+v", line, m)
		}
		if m.Error != nil {
			for _, r := range m.Error.Error() {
				if r < ' ' {
					t.Errorf("error %q is not one line", m.Error.Error())
				}
			}
		}
	})
}
