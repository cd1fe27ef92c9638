package approval

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tree  = strings.Repeat("1", 40)
	other = strings.Repeat("2", 40)
	base  = strings.Repeat("3", 40)
	files = strings.Repeat("4", 40) // tree of the reviewed checkpoint
	head  = strings.Repeat("5", 40) // HEAD of the reviewed checkpoint
)

// checkpointOf returns a checkpoint with the given id, tree and HEAD.
func checkpointOf(id, tree, head string) session.Checkpoint {
	p := session.Checkpoint{ID: session.CheckpointID(id)}
	for text, id := range map[string]*object.ID{tree: &p.Tree, head: &p.Head} {
		*id, _ = object.ParseID(text)
	}
	return p
}

const (
	older = "01M80Q4Z50EZKC5YR3HTMPRYYQ"
	newer = "01M80Q4Z50EZKC5YR3HTMPRYYR"
)

// written is a file of approval records to which a test adds records.
type written struct {
	t    testing.TB
	log  Log
	file []byte
	now  time.Time
}

func write(t testing.TB) *written {
	return &written{t: t, log: Log{Session: "work"}, now: start}
}

// add adds a record and returns its id.
func (w *written) add(r Record) string {
	w.t.Helper()
	w.now = w.now.Add(time.Minute)
	if r.Op == Request {
		if r.Subject == nil {
			r.Subject = &Subject{Action: Merge, Checkpoint: older, Files: files, Commit: head, Tree: tree,
				Target: "refs/heads/main",
				Base:   base}
		}
		if r.Expires.IsZero() {
			r.Expires = w.now.Add(24 * time.Hour)
		}
	}
	var err error
	if w.file, r, err = w.log.Append(w.file, r, w.now); err != nil {
		w.t.Fatal(err)
	}
	return r.ID
}

// TestChainShowsEachChange checks that ParseLog refuses a file that was changed in any other way than by new lines at
// the end.
func TestChainShowsEachChange(t *testing.T) {
	w := write(t)
	id := w.add(Record{Op: Request, Actor: "agent", Text: "a <b> text\nof two lines"})
	w.add(Record{Op: Grant, Actor: "alice", Request: id})
	w.add(Record{Op: Deny, Actor: "bob", Request: id, Text: "no"})
	again, err := ParseLog("work", w.file)
	if err != nil || len(again.Records) != 3 || again.last != w.log.last ||
		again.Records[0].Text != "a <b> text\nof two lines" {
		t.Fatalf("parsed again: got %+v, %v", again, err)
	}
	lines := bytes.SplitAfter(w.file, []byte("\n"))[:3]
	for name, file := range map[string][]byte{
		"line removed":    bytes.Join([][]byte{lines[0], lines[2]}, nil),
		"first removed":   bytes.Join(lines[1:], nil),
		"order changed":   bytes.Join([][]byte{lines[0], lines[2], lines[1]}, nil),
		"line repeated":   bytes.Join([][]byte{lines[0], lines[1], lines[1]}, nil),
		"word changed":    bytes.Replace(w.file, []byte("alice"), []byte("carol"), 1),
		"space added":     bytes.Replace(w.file, []byte(`{"v"`), []byte(`{ "v"`), 1),
		"cut":             w.file[:len(w.file)-1],
		"of a session":    bytes.ReplaceAll(w.file, []byte(`"session":"work"`), []byte(`"session":"play"`)),
		"unknown field":   bytes.Replace(w.file, []byte(`{"v":1,`), []byte(`{"v":1,"x":1,`), 1),
		"two objects":     append(bytes.TrimSuffix(bytes.Clone(lines[0]), []byte("\n")), "{}\n"...),
		"not JSON":        []byte("x\n"),
		"empty line":      []byte("\n"),
		"later version":   bytes.Replace(lines[0], []byte(`{"v":1,`), []byte(`{"v":2,`), 1),
		"another session": nil,
	} {
		of := "work"
		if file == nil {
			of, file = "play", w.file
		}
		if _, err := ParseLog(of, file); !errors.Is(err, ErrLog) {
			t.Errorf("%s: got %v, want ErrLog", name, err)
		}
	}
}

func TestInvalidRecordsAreRefused(t *testing.T) {
	w := write(t)
	id := w.add(Record{Op: Request, Actor: "agent"})
	request := func(change func(*Record)) Record {
		r := Record{Op: Request, Actor: "agent", Expires: start.Add(time.Hour),
			Subject: &Subject{Action: Promote, Tree: tree, Target: "refs/heads/main"}}
		change(&r)
		return r
	}
	for name, r := range map[string]Record{
		"no actor":             {Op: Grant, Request: id},
		"long actor":           {Op: Grant, Request: id, Actor: strings.Repeat("a", 201)},
		"actor of two lines":   {Op: Grant, Request: id, Actor: "a\nb"},
		"unknown kind":         {Op: "approve", Request: id, Actor: "a"},
		"unknown request":      {Op: Grant, Request: newer, Actor: "a"},
		"grant with a subject": {Op: Grant, Request: id, Actor: "a", Subject: &Subject{}},
		"no subject":           request(func(r *Record) { r.Subject = nil }),
		"request of a request": request(func(r *Record) { r.Request = id }),
		"no tree":              request(func(r *Record) { r.Subject.Tree = "" }),
		"no branch":            request(func(r *Record) { r.Subject.Target = "refs/tags/v1" }),
		"invalid branch":       request(func(r *Record) { r.Subject.Target = "refs/heads/a..b" }),
		"invalid base":         request(func(r *Record) { r.Subject.Base = "x" }),
		"invalid commit":       request(func(r *Record) { r.Subject.Commit = "x" }),
		"invalid checkpoint":   request(func(r *Record) { r.Subject.Checkpoint = "x" }),
		"unknown action":       request(func(r *Record) { r.Subject.Action = "push" }),
		"delete a branch":      request(func(r *Record) { r.Subject.Action = Delete }),
		"expired":              request(func(r *Record) { r.Expires = start.Add(-time.Hour) }),
		"empty reviewer":       request(func(r *Record) { r.Reviewers = []string{""} }),
	} {
		log := w.log
		if _, _, err := log.Append(w.file, r, start); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPolicy(t *testing.T) {
	for text, want := range map[string]string{
		``:              "",
		`{"version":1}`: "",
		`{"version":1,"branches":[{"match":"main","quorum":1}]}`: "",
		`{"version":1,"sessions":[{"match":"*","quorum":2}]}`:    "",
		`{"version":2}`:                                                         "version 2",
		`{"version":1,"branchs":[]}`:                                            "unknown field",
		`{"version":1,"branches":[{"match":"main"}]}`:                           "quorum is 0",
		`{"version":1,"branches":[{"match":"[","quorum":1}]}`:                   "invalid glob",
		`{"version":1,"branches":[{"match":"a","quorum":2,"reviewers":["x"]}]}`: "there are 1 reviewers",
		`{"version":1,"branches":[{"match":"a","quorum":1,"ttl":"-1s"}]}`:       "ttl is -1s",
		`{"version":1,"branches":[{"match":"a","quorum":1,"ttl":"soon"}]}`:      "invalid duration",
		`nothing`: "invalid character",
	} {
		_, err := ParsePolicy([]byte(text))
		if want == "" && err != nil || want != "" && (!errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), want)) {
			t.Errorf("policy %s: got %v, want %q", text, err, want)
		}
	}
}

// TestDecisions adds records to a request for the branch main, and checks what the policy decides.
func TestDecisions(t *testing.T) {
	const one = `{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice","bob"]}]}`
	const two = `{"version":1,"branches":[{"match":"*","quorum":2},{"match":"main","paths":["/infra/**"],"quorum":1,"reviewers":["ops"],"ttl":"1h"}]}`
	const self = `{"version":1,"branches":[{"match":"main","quorum":1,"self":true}]}`
	grant := func(actor, token string) Record { return Record{Op: Grant, Actor: actor, Token: token} }
	change := Change{Branch: "refs/heads/main", Base: base, Tree: tree, Paths: []string{"README", "src/a.go"}}
	for _, c := range []struct {
		name, policy string
		records      []Record
		change       func(*Change)
		newest       session.Checkpoint
		uncovered    string // reason why the request does not cover the commit
		after        time.Duration
		want         string // part of the refusal; "" if the change is allowed
	}{
		{name: "no rule", policy: `{"version":1}`},
		{name: "another branch", policy: one, change: func(c *Change) { c.Branch = "refs/heads/topic" }},
		{name: "no grant", policy: one, want: "needs 1 more approval of alice, bob"},
		{name: "granted", policy: one, records: []Record{grant("alice", "")}},
		{name: "not a reviewer", policy: one, records: []Record{grant("carol", "")}, want: "needs 1 more approval"},
		{name: "own grant", policy: one, records: []Record{grant("agent", "")}, want: "needs 1 more approval"},
		{name: "own token", policy: one, records: []Record{grant("alice", "t1")}, want: "needs 1 more approval"},
		{name: "own grant is allowed", policy: self, records: []Record{grant("agent", "t1")}},
		{name: "denied", policy: one, records: []Record{grant("alice", ""), {Op: Deny, Actor: "bob"}},
			want: "was denied by bob"},
		{name: "denial by another user", policy: one, records: []Record{grant("alice", ""), {Op: Deny, Actor: "carol"}}},
		{name: "denied, then granted", policy: one, records: []Record{{Op: Deny, Actor: "bob"}, grant("bob", "")}},
		{name: "grant withdrawn", policy: one, records: []Record{grant("bob", ""), {Op: Withdraw, Actor: "bob"}},
			want: "needs 1 more"},
		{name: "request withdrawn", policy: one, records: []Record{grant("bob", ""), {Op: Withdraw, Actor: "agent"}},
			want: "was withdrawn"},
		{name: "newer checkpoint", policy: one, records: []Record{grant("bob", "")}, newest: checkpointOf(newer, other, head),
			want: "is void"},
		{name: "same checkpoint", policy: one, records: []Record{grant("bob", "")}, newest: checkpointOf(older, files, head)},
		{name: "newer checkpoint without changes", policy: one, records: []Record{grant("bob", "")},
			newest: checkpointOf(newer, files, head)},
		{name: "newer checkpoint of another commit", policy: one, records: []Record{grant("bob", "")},
			newest: checkpointOf(newer, files, base),
			want:   "is void"},
		{name: "other commit", policy: one, records: []Record{grant("bob", "")}, uncovered: "is for another commit",
			want: "is for another commit"},
		{name: "expired", policy: one, records: []Record{grant("bob", "")}, after: 25 * time.Hour, want: "has expired"},
		{name: "other tree", policy: one, records: []Record{grant("bob", "")}, change: func(c *Change) { c.Tree = other },
			want: "needs an approval of this tree and base by 1 user of alice, bob"},
		{name: "other base", policy: one, records: []Record{grant("bob", "")}, change: func(c *Change) { c.Base = other },
			want: "this tree and base"},
		{name: "quorum of two", policy: two, records: []Record{grant("a", ""), grant("b", "")}},
		{name: "one of two", policy: two, records: []Record{grant("a", ""), grant("a", "")}, want: "needs 1 more approval"},
		{name: "two names of one token", policy: two, records: []Record{grant("a", "t2"), grant("b", "t2")},
			want: "needs 1 more approval"},
		{name: "rule for a path", policy: two, records: []Record{grant("a", ""), grant("b", "")},
			change: func(c *Change) { c.Paths = append(c.Paths, "infra/net.tf") }, want: "needs 1 more approval of ops"},
		{name: "rule for a path satisfied", policy: two, records: []Record{grant("a", ""), grant("ops", "")},
			change: func(c *Change) { c.Paths = append(c.Paths, "infra/net.tf") }},
		{name: "lifetime of a rule", policy: two, records: []Record{grant("a", ""), grant("ops", "")}, after: 2 * time.Hour,
			change: func(c *Change) { c.Paths = append(c.Paths, "infra/net.tf") }, want: "has expired"},
		{name: "deletion", policy: `{"version":1,"sessions":[{"match":"w*","quorum":1}]}`,
			records: []Record{grant("bob", "")},
			change:  func(c *Change) { *c = Change{Session: "work", Newest: checkpointOf(older, files, head)} },
			want:    "session work is protected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := write(t)
			id := w.add(Record{Op: Request, Actor: "agent", Token: "t1"})
			for _, r := range c.records {
				r.Request = id
				w.add(r)
			}
			p, err := ParsePolicy([]byte(c.policy))
			if err != nil {
				t.Fatal(err)
			}
			change := change
			change.Covers = func(Record) string { return c.uncovered }
			if c.change != nil {
				c.change(&change)
			}
			allowed, err := p.Check(change, []Log{w.log}, func(string) (session.Checkpoint, error) { return c.newest, nil },
				w.now.Add(c.after))
			if err == nil && len(p.Branches) > 0 && p.Protects(change.Branch) && allowed.ID != id {
				t.Errorf("request that allows the change: got %q, want %q", allowed.ID, id)
			}
			var refused Refused
			if c.want == "" && err != nil || c.want != "" &&
				(!errors.As(err, &refused) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestRulesForPaths checks that a rule for paths applies if one of its globs matches a path, and after too many
// comparisons.
func TestRulesForPaths(t *testing.T) {
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("src/d%05d/file", i))
	}
	for glob, want := range map[string]bool{
		"src/**": true, "/src/d00007/*": true, "src/d000*/file": true, "src/d00007": false, "src": false, "s*": false,
		"src/d00007/file": true,
		"src/d1000000/**": false, "*/d99999/file": true, "?rc/d00000/none": false, "t": false,
	} {
		p := Policy{Version: 1, Branches: []BranchRule{{Match: "main", Paths: []string{glob}, Need: Need{Quorum: 1}}}}
		if got := len(p.needs(Change{Branch: "refs/heads/main", Paths: paths})) > 0; got != want {
			t.Errorf("rule for %s applies: got %t, want %t", glob, got, want)
		}
	}
	many := Policy{Version: 1}
	for i := range maxRules {
		many.Branches = append(many.Branches, BranchRule{Match: "*", Paths: []string{fmt.Sprintf("*/x%d", i)},
			Need: Need{Quorum: 1}})
	}
	if !many.NeedsPaths("refs/heads/main") || many.NeedsPaths("refs/heads/a/b") {
		t.Error("NeedsPaths is wrong")
	}
	if got, most := len(many.needs(Change{Branch: "refs/heads/main", Paths: paths})),
		maxRules-maxMatches/len(paths); got != most {
		t.Errorf("rules after too many comparisons: got %d, want %d", got, most)
	}
}

// TestRequestWithoutContents checks that a request of an older version, which does not name the files of the
// checkpoint, is void after any newer checkpoint.
func TestRequestWithoutContents(t *testing.T) {
	s := Subject{Checkpoint: older}
	if s.VoidedBy(checkpointOf(older, files, head)) || !s.VoidedBy(checkpointOf(newer, files, head)) {
		t.Error("a request without contents: got another rule than the id of the checkpoint")
	}
}

// TestDeletion checks that the request to delete a session is void if the session has changed.
func TestDeletion(t *testing.T) {
	w := write(t)
	id := w.add(Record{Op: Request, Actor: "agent",
		Subject: &Subject{Action: Delete, Checkpoint: older, Files: files, Commit: head, Tree: tree}})
	w.add(Record{Op: Grant, Actor: "bob", Request: id})
	p, err := ParsePolicy([]byte(`{"version":1,"sessions":[{"match":"w*","quorum":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for newest, want := range map[session.Checkpoint]bool{
		checkpointOf(older, files, head): true, checkpointOf(newer, files, head): true,
		checkpointOf(newer, other, head): false, checkpointOf(newer, files, base): false, {}: false,
	} {
		_, err := p.Check(Change{Session: "work", Newest: newest}, []Log{w.log},
			func(string) (session.Checkpoint, error) { return newest, nil }, w.now)
		if (err == nil) != want {
			t.Errorf("deletion at %s: got %v", newest.ID, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	w := write(f)
	id := w.add(Record{Op: Request, Actor: "agent"})
	w.add(Record{Op: Grant, Actor: "alice", Request: id})
	f.Add(string(w.file), `{"version":1,"branches":[{"match":"main","paths":["/a/**"],"quorum":1,"ttl":"1h"}]}`)
	f.Fuzz(func(t *testing.T, file, policy string) {
		p, err := ParsePolicy([]byte(policy))
		if err != nil {
			return
		}
		l, err := ParseLog("work", []byte(file))
		if err != nil {
			return
		}
		for _, r := range l.Records {
			if r.Op == Request {
				p.Judge(l, r, []string{"a/b"}, session.Checkpoint{}, start)
			}
		}
	})
}

// TestRequestOfABrokenSession checks that a request whose session cannot be read neither allows a change nor prevents
// one that another request allows.
func TestRequestOfABrokenSession(t *testing.T) {
	p, err := ParsePolicy([]byte(`{"version":1,"branches":[{"match":"main","quorum":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	asked, broken := write(t), write(t)
	broken.log.Session = "broken"
	id := asked.add(Record{Op: Request, Actor: "agent"})
	other := broken.add(Record{Op: Request, Actor: "stranger"})
	broken.add(Record{Op: Grant, Actor: "bob", Request: other})
	unreadable := errors.New("checkpoint is missing")
	newest := func(name string) (session.Checkpoint, error) {
		if name == "broken" {
			return session.Checkpoint{}, unreadable
		}
		return checkpointOf(older, files, head), nil
	}
	change := Change{Branch: "refs/heads/main", Base: base, Tree: tree, Covers: func(Record) string { return "" }}
	if r, err := p.Check(change, []Log{broken.log, asked.log}, newest, start); !errors.Is(err, unreadable) {
		t.Errorf("only the broken session has an approval: got %+v, %v", r, err)
	}
	asked.add(Record{Op: Grant, Actor: "bob", Request: id})
	if r, err := p.Check(change, []Log{broken.log, asked.log}, newest, start); err != nil || r.ID != id {
		t.Errorf("another session has an approval: got %+v, %v, want %s", r, err, id)
	}
}
