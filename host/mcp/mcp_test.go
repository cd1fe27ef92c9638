package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

const dir = "/srv/app"

type sessions interface{ control.Sessions }

// fake is a daemon that records the requests. The methods of the embedded interfaces are not implemented and must not
// be called.
type fake struct {
	control.Handler
	sessions
	control.CacheEntries
	control.Locks

	mu         sync.Mutex
	asked      []any
	err        error // error of all requests except those with a field of their own below
	syncErr    error
	value      []byte
	patch      string
	log        int                  // number of checkpoints of the session
	history    []control.Checkpoint // checkpoints of the session, if log is 0
	changes    []control.PathChange // changes between any two of them
	transcript []control.TranscriptRecord
}

func (f *fake) ask(r any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r)
	return f.err
}

// last returns the last request, and removes all recorded requests.
func (f *fake) last() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return nil
	}
	defer func() { f.asked = nil }()
	return f.asked[len(f.asked)-1]
}

func (f *fake) Sync(context.Context, control.SyncRequest, func(control.Progress)) (control.SyncReply, error) {
	return control.SyncReply{}, f.syncErr
}

func (f *fake) SessionApprove(
	_ context.Context, r control.SessionApproveRequest,
) (reply control.SessionApproveReply, err error) {
	return reply, f.ask(r)
}

func (f *fake) SessionAnnotate(
	_ context.Context, r control.SessionAnnotateRequest,
) (reply control.SessionAnnotateReply, err error) {
	return reply, f.ask(r)
}

func (f *fake) SessionCompare(
	_ context.Context, r control.SessionCompareRequest,
) (reply control.SessionCompareReply, err error) {
	return reply, f.ask(r)
}

func (f *fake) SessionPromote(
	_ context.Context, r control.SessionPromoteRequest,
) (reply control.SessionPromoteReply, err error) {
	return reply, f.ask(r)
}

func (f *fake) Restore(
	_ context.Context, r control.RestoreRequest, _ func(control.Progress),
) (reply control.RestoreReply, err error) {
	r.Nonce = "" // the nonce differs in each request
	return reply, f.ask(r)
}

func (f *fake) SessionLocks(
	_ context.Context, r control.SessionLocksRequest,
) (reply control.SessionLocksReply, err error) {
	return reply, f.ask(r)
}

func (f *fake) CachePut(_ context.Context, r control.CachePutRequest) (reply control.CacheChangeReply, err error) {
	return reply, f.ask(r)
}

func (f *fake) CacheGet(_ context.Context, r control.CacheGetRequest) (control.CacheGetReply, error) {
	return control.CacheGetReply{Value: f.value}, f.ask(r)
}

func (f *fake) SessionDiff(_ context.Context, r control.SessionDiffRequest) (control.SessionDiffReply, error) {
	return control.SessionDiffReply{Patch: f.patch, Changes: f.changes}, f.ask(r)
}

func (f *fake) SessionLog(_ context.Context, r control.SessionLogRequest) (control.SessionLogReply, error) {
	if f.log == 0 {
		return control.SessionLogReply{Checkpoints: f.history}, f.ask(r)
	}
	return control.SessionLogReply{Checkpoints: make([]control.Checkpoint, min(f.log, r.Limit))}, f.ask(r)
}

func (f *fake) SessionTranscript(
	_ context.Context, r control.SessionTranscriptRequest,
) (control.SessionTranscriptReply, error) {
	return control.SessionTranscriptReply{Turns: 7, Records: f.transcript}, f.ask(r)
}

// agent is an MCP client that is connected to the tools, and the daemon that the tools use.
type agent struct {
	*fake
	t       *testing.T
	session *sdk.ClientSession
	status  control.MountStatus // mount that Find returns
	found   []string            // verbs of the calls of Find
	missing error               // error of Find
}

// newAgent connects an agent to a server that offers all tools.
func newAgent(t *testing.T) *agent {
	t.Helper()
	return newAgentOf(t, "all,promote")
}

// newAgentOf connects an agent to a server that offers the tools in a list.
func newAgentOf(t *testing.T, list string) *agent {
	t.Helper()
	tools, err := ParseTools(list)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{fake: &fake{}, t: t, status: control.MountStatus{Dir: dir}}
	socket := filepath.Join(t.TempDir(), "s")
	server, err := control.Listen(t.Context(), socket, a.fake, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	var daemon sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	daemon.Go(func() { server.Serve(ctx) })
	t.Cleanup(func() { stop(); daemon.Wait() })
	client, err := control.Dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	find := func(_ context.Context, verb string) (Session, error) {
		a.found = append(a.found, verb)
		return Session{Client: client, Mount: a.status}, a.missing
	}
	fromAgent, toServer := io.Pipe()
	fromServer, toAgent := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, "1", Options{Find: find, Tools: tools}, fromAgent, toAgent) }()
	a.session, err = sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx,
		&sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		toServer.Close() // closes the connection, as the end of an agent does
		if err := <-served; err != nil {
			t.Errorf("end of the server after its input has ended: got %v, want nil", err)
		}
	})
	return a
}

// call calls a tool with arguments in JSON, and decodes its structured content into out. It returns true if the tool
// failed.
func (a *agent) call(tool, arguments string, out any) (failed bool) {
	a.t.Helper()
	r, err := a.session.CallTool(a.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)})
	if err != nil {
		a.t.Fatalf("call %s: %v", tool, err)
	}
	text, err := json.Marshal(r.StructuredContent)
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		a.t.Fatalf("structured content of %s is %s: %v", tool, text, err)
	}
	return r.IsError
}

// report calls a tool that must fail, and returns the error that the client receives.
func (a *agent) report(tool, arguments string) control.ReportedError {
	a.t.Helper()
	var r control.ErrorReport
	if !a.call(tool, arguments, &r) {
		a.t.Errorf("call of %s with %s: got no error", tool, arguments)
	}
	return r.Error
}

// TestRequests checks that each tool sends the request that its arguments describe, for the session that Find returns.
// In particular, dry runs and limits of locks are passed on, and nothing is forced.
func TestRequests(t *testing.T) {
	a := newAgent(t)
	actor := session.Actor()
	me := control.CompareSide{Of: dir}
	for _, c := range []struct {
		tool, arguments string
		want            any
	}{
		{"promote", `{"checkpoint": "@", "branch": "b", "method": "squash", "message": "m", "dry_run": true}`,
			control.SessionPromoteRequest{Of: dir, ID: "@", Branch: "b", Method: control.PromoteSquash, Message: "m",
				DryRun: true, Identity: control.Identity()}},
		{"restore", `{"checkpoint": "good", "paths": ["a"], "staged": true, "dry_run": true}`,
			control.RestoreRequest{Dir: dir, ID: "good", Paths: []string{"a"}, Staged: true, DryRun: true}},
		{"lock", `{"paths": ["a", "b/**"], "reason": "r", "ttl_seconds": 90}`, control.SessionLocksRequest{Of: dir,
			Op: control.LockAcquire, Patterns: []string{"a", "b/**"}, Reason: "r", TTL: 90 * time.Second, Actor: actor}},
		{"unlock", `{"paths": ["a"]}`,
			control.SessionLocksRequest{Of: dir, Op: control.LockRelease, Patterns: []string{"a"}, Actor: actor}},
		{"cache_put", `{"key": "k", "value": "v", "ttl_seconds": 60, "expect": "none"}`,
			control.CachePutRequest{Of: dir, Key: "k", Value: []byte("v"), TTL: time.Minute, Expect: "none", Actor: actor}},
		{"annotate", `{"text": "why?", "path": "a", "line": 3}`, control.SessionAnnotateRequest{Of: dir,
			Op: control.AnnotateOpen, Path: "a", Line: 3, Text: "why?", Actor: actor}},
		{"annotate", `{"text": "so", "thread": "T"}`,
			control.SessionAnnotateRequest{Of: dir, Op: control.AnnotateReply, Thread: "T", Text: "so", Actor: actor}},
		{"annotate", `{"thread": "T", "state": "resolve"}`,
			control.SessionAnnotateRequest{Of: dir, Op: "resolve", Thread: "T", Actor: actor}},
		{"compare", `{"with": ["try", "try@good", "try@~2", "@~1", "https://x/y.git#session=s@c"]}`,
			control.SessionCompareRequest{Dir: dir, Sides: []control.CompareSide{me, {Of: "try"}, {Of: "try", ID: "good"},
				{Of: "try", ID: "@~2"}, {Of: dir, ID: "@~1"}, {Of: "s", SessionRemote: "https://x/y.git", ID: "c"}}}},
		{"request_approval", `{"for": "merge", "branch": "main", "reviewers": ["ann"], "message": "please"}`,
			control.SessionApproveRequest{Of: dir, Op: control.ApproveRequest, Action: "merge", Branch: "main",
				Reviewers: []string{"ann"}, Text: "please", Actor: actor}},
	} {
		if a.call(c.tool, c.arguments, nil) {
			t.Errorf("%s with %s failed", c.tool, c.arguments)
		}
		if got := a.last(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s with %s: got the request %+v, want %+v", c.tool, c.arguments, got, c.want)
		}
		if got := a.found[len(a.found)-1]; got != c.tool {
			t.Errorf("%s: the session was looked up for %q", c.tool, got)
		}
	}
}

// TestErrors checks that an error has the code and the hint of the daemon, in content that programs can read. If the
// daemon's error names no operation, the error contains the name of the tool.
func TestErrors(t *testing.T) {
	a := newAgent(t)
	a.err = &control.Error{Code: control.ExitFailed, Kind: control.CodeConflict, Verb: "lock", Object: "a",
		Cause: "locked by try", Hint: "wait"}
	want := control.ReportedError{Code: control.CodeConflict, Message: "lock a: locked by try", Hint: "wait",
		Retryable: control.CodeConflict.Retryable()}
	if got := a.report("lock", `{"paths": ["a"]}`); got != want {
		t.Errorf("error of the daemon: got %+v, want %+v", got, want)
	}
	a.err = &control.Error{Code: control.ExitFailed, Cause: "disk full"}
	got := a.report("restore", `{"checkpoint": "x"}`)
	if got.Message != "restore "+dir+": disk full" || got.Code != control.CodeFailed {
		t.Errorf("error without an operation: got %+v, want the tool and the mount in it", got)
	}
	a.last()
	// The session may be unmounted and mounted again while the agent runs.
	a.missing = &control.Error{Code: control.ExitNotMounted, Verb: "log", Cause: "no mount", Hint: "mount it"}
	if got := a.report("log", `{}`); got.Code != control.CodeNotMounted || got.Hint != "mount it" {
		t.Errorf("tool of a session that is not mounted: got %+v, want %s with its hint", got, control.CodeNotMounted)
	}
	a.missing, a.err = nil, nil
	if r := a.last(); r != nil || a.call("log", `{}`, nil) {
		t.Errorf("tool after the session was mounted again: failed, or sent %+v before", r)
	}
	a.last()
	if got := a.report("restore", `{"checkpoint": 7}`); got.Code != control.CodeUsage || a.last() != nil {
		t.Errorf("wrong arguments: got %+v, want %s and no request", got, control.CodeUsage)
	}
	// A request for approval is sent even if the session remote has refused a branch, but not after any other failure
	// of the push.
	a.syncErr = &control.Error{Code: control.ExitUnsynced, Cause: "a branch was refused"}
	if a.call("request_approval", `{"for": "merge"}`, nil) || a.last() == nil {
		t.Error("request for approval after a branch was refused: got no request")
	}
	a.syncErr = &control.Error{Code: control.ExitRemote, Cause: "no connection"}
	got = a.report("request_approval", `{"for": "merge"}`)
	if !strings.HasSuffix(got.Message, "no connection") || a.last() != nil {
		t.Errorf("request for approval after a push that failed: got %+v, want that error and no request", got)
	}
}

// TestLimits checks that the size of a result is limited, because it uses space in the context of the agent, and that
// the result states whether there is more.
func TestLimits(t *testing.T) {
	a := newAgent(t)
	var log struct {
		Checkpoints []any
		More        bool
	}
	for arguments, want := range map[string]int{`{}`: defaultLog, `{"limit": 3}`: 3, `{"limit": 40}`: 40} {
		a.log = want
		if a.call("log", arguments, &log); len(log.Checkpoints) != want || log.More {
			t.Errorf("log %s of %d checkpoints: got %d, more %v", arguments, want, len(log.Checkpoints), log.More)
		}
		a.log = want + 1
		if a.call("log", arguments, &log); len(log.Checkpoints) != want || !log.More {
			t.Errorf("log %s of %d checkpoints: got %d, more %v", arguments, want+1, len(log.Checkpoints), log.More)
		}
	}
	// A patch is cut between two characters. Each character of the second part of the patch has three bytes.
	for more, less := range map[int]int{0: 0, 1: 2, 2: 1, 3: 0} {
		size, want := maxPatch+more, maxPatch-less
		a.patch = strings.Repeat("x", size-30) + strings.Repeat("€", 10)
		var diff struct {
			Patch, Cut string
			Truncated  bool
		}
		a.call("diff", `{"patch": true}`, &diff)
		if !strings.HasPrefix(a.patch, diff.Patch) || len(diff.Patch) != want {
			t.Errorf("patch of %d bytes: got %d bytes that end in %q, want the first %d", size, len(diff.Patch),
				diff.Patch[len(diff.Patch)-5:], want)
		}
		says := strings.Contains(diff.Cut, fmt.Sprint(size)) && strings.Contains(diff.Cut, "artifactfs session diff")
		if cut := size > maxPatch; diff.Truncated != cut || says != cut {
			t.Errorf("patch of %d bytes: got truncated %v, %q, want %v", size, diff.Truncated, diff.Cut, cut)
		}
	}
	for i := range 60 {
		r := control.TranscriptRecord{ID: string(rune('A' + i)), Time: time.Unix(int64(i), 0).UTC(), Turn: i}
		if r.Record = json.RawMessage(`{"n": 1}`); i == 59 {
			r.Record, r.Erased = nil, &control.Erased{}
		}
		a.transcript = append(a.transcript, r)
	}
	var read transcriptOutput
	a.call("transcript", `{}`, &read)
	if n := len(read.Records); n != defaultRecords || !read.More || read.Turns != 7 || read.Records[0].Turn != 10 {
		t.Fatalf("transcript: got %d records, more %v, turns %d, want the newest %d",
			n, read.More, read.Turns, defaultRecords)
	}
	if last := read.Records[defaultRecords-1]; !last.Erased || last.Record != nil || read.Records[0].Erased {
		t.Errorf("erased record: got %+v", last)
	}
	a.call("transcript", `{"limit": 60}`, &read)
	if read.More = false; len(read.Records) != 60 {
		t.Errorf("transcript with a limit of 60: got %d records", len(read.Records))
	}
	for what, value := range map[string]string{"too large": strings.Repeat("x", maxCached+1), "no text": "\xff\xfe"} {
		a.value = []byte(value)
		if got := a.report("cache_get", `{"key": "k"}`); !strings.Contains(got.Hint, "session cache get") {
			t.Errorf("value that is %s: got %+v, want the command that writes it to a file", what, got)
		}
	}
	a.value = []byte("grüße")
	var got cacheOutput
	if a.call("cache_get", `{"key": "k"}`, &got); got.Value != "grüße" {
		t.Errorf("value: got %q", got.Value)
	}
}
