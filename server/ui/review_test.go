package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/server/ui"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
)

// notes collects annotations that a test adds to a session.
type notes struct {
	m    *sessionMaker
	file []byte
}

// at returns the place of lines of a file at a checkpoint.
func (n *notes) at(checkpoint, path string, line, end int) annotate.Place {
	n.m.t.Helper()
	commit := n.m.commitOf(checkpoint)
	on := annotate.Place{Checkpoint: checkpoint, Tree: gittest.Must(n.m.t, n.m.dir, "rev-parse", commit+"^{tree}"),
		Path: path, Line: line, End: end}
	on.Blob = gittest.Must(n.m.t, n.m.dir, "rev-parse", commit+":"+path)
	if line > 0 {
		on.Quote = annotate.Quote([]byte(gittest.Must(n.m.t, n.m.dir, "cat-file", "blob", on.Blob)), line, end)
	}
	return on
}

func (n *notes) add(a annotate.Act) (id string) {
	n.m.t.Helper()
	file, a, err := annotate.Append(n.file, a, time.Now())
	if err != nil {
		n.m.t.Fatal(err)
	}
	n.file = file
	return a.Thread
}

func (n *notes) open(on annotate.Place, actor, text string) (id string) {
	return n.add(annotate.Act{Op: annotate.Open, On: &on, Actor: actor, Text: text})
}

// commitOf returns the commit of HEAD at a checkpoint.
func (m *sessionMaker) commitOf(checkpoint string) string {
	m.t.Helper()
	m.run()
	return gittest.Must(m.t, m.dir, "log", "-1", "--format=%H", "--grep=Afs-Checkpoint: "+checkpoint,
		"--glob="+session.LanePrefix(m.name))
}

// store creates a ref with a commit that has one file.
func (m *sessionMaker) store(ref, name string, content []byte) {
	fmt.Fprintf(&m.in, "commit %s\n", ref)
	m.who(m.began)
	m.text("file")
	m.file(name, string(content))
	m.run()
}

// smallSession returns the session that the function small creates.
func smallSession(t testing.TB) *sessionMaker {
	m := newSession(t, "fix", map[string]string{"main.go": "package main\n\nfunc main() {}\n",
		"docs/read me.txt": "one\ntwo\nthree\n", "old name.txt": strings.Repeat("line\n", 20)})
	first := m.checkpoint(10, "idle", "",
		map[string]string{"main.go": "package main\n\n// hello\nfunc main() { println(\"<hi>\") }\n"})
	m.records(first, 12, `{"type":"prompt","role":"user","text":"Fix the login & greet"}`,
		`{"type":"tool_call","role":"assistant","tool":"Bash","input":{"command":"go test ./..."}}`,
		`{"type":"response","role":"assistant","text":"done"}`)
	m.checkpoint(30, "command", "before the rename",
		map[string]string{"new.txt": "new\n", "old name.txt": "", "docs/new name.txt": strings.Repeat("line\n", 20)})
	m.checkpoint(40, "turn", "", map[string]string{"docs/read me.txt": "one\n2\nthree\n"})
	return m
}

// threadOf returns the HTML of a thread on a page, "" if the page does not contain it.
func threadOf(page, id string) string {
	return regexp.MustCompile(`(?s)<details class="thread[^>]*id="t-` + id + `".*?</details>`).FindString(page)
}

// TestThreads checks that threads are shown in the panel of the session and of their checkpoint, and at their lines in
// files and differences, even if the lines have moved. Threads whose lines do not exist any more are listed below the
// file, and resolved threads are folded.
func TestThreads(t *testing.T) {
	m := smallSession(t)
	n := &notes{m: m}
	whole := n.open(annotate.Place{}, "alice", "Looks <b>good</b>\u202e")
	n.add(annotate.Act{Op: annotate.Reply, Thread: whole, Actor: "bob", Text: "thanks"})
	point := n.open(annotate.Place{Checkpoint: m.ids[1]}, "alice", "why the rename?")
	n.add(annotate.Act{Op: annotate.Resolve, Thread: point, Actor: "bob", Text: "the name was old"})
	hello := n.open(n.at(m.ids[0], "main.go", 3, 3), "alice", "say more than hello")
	moved := n.open(n.at(m.ids[0], "old name.txt", 5, 6), "alice", "five to six")
	gone := n.open(n.at(m.ids[1], "docs/read me.txt", 2, 2), "alice", "a number would be shorter")
	far := n.open(n.at(m.ids[2], "docs/new name.txt", 20, 20), "alice", "the last line")
	file := n.open(n.at(m.ids[2], "new.txt", 0, 0), "alice", "a file")
	bad := n.open(annotate.Place{Checkpoint: m.ids[0], Tree: strings.Repeat("1", 40), Path: "main.go",
		Blob: strings.Repeat("2", 40), Line: 1, End: 1}, "eve", "unknown objects")
	m.store(session.AnnotationsRef("fix"), annotate.LogFile, n.file)
	w := newWorld(t, nil)
	app := w.repo(t, "team", "app", m.done())
	read := w.reader(t, app)

	page := w.get(t, read, "/ui/team/app/s/fix", http.StatusOK)
	wants(t, page, "7 open threads, 1 resolved", "<mark>2 threads</mark>", "Looks &lt;b&gt;good&lt;/b&gt;⟨U&#43;202E⟩",
		"thanks", "main.go:3", "old name.txt:5-6")
	for _, id := range []string{whole, point, hello, moved, gone, far, file, bad} {
		if threadOf(page, id) == "" {
			t.Errorf("page of the session lacks thread %s", id)
		}
	}
	if thread := threadOf(page, point); !strings.Contains(thread, `class="thread resolved"`) ||
		strings.Contains(thread, " open>") || !strings.Contains(thread, "resolved <time") {
		t.Errorf("resolved thread: got %s", thread)
	}
	panel := w.get(t, read, "/ui/team/app/s/fix?part=cursor&at="+m.ids[1], http.StatusOK)
	if threadOf(panel, point) == "" || threadOf(panel, gone) == "" || threadOf(panel, whole) != "" {
		t.Errorf("panel of a checkpoint: got %s", panel)
	}

	tree := "/ui/team/app/tree/fix@"
	view := w.get(t, read, tree+m.ids[2]+"/main.go", http.StatusOK)
	if at, after := strings.Index(view, `id="t-`+hello),
		strings.Index(view, `id="L4"`); at < strings.Index(view, `id="L3"`) || at > after || at < 0 {
		t.Errorf("thread about line 3 is not between lines 3 and 4: %s", view)
	}
	if thread := threadOf(view, bad); !strings.Contains(thread, "unknown") ||
		strings.Index(view, thread) < strings.Index(view, `id="L4"`) {
		t.Errorf("thread with unknown objects: got %s", thread)
	}
	view = w.get(t, read, tree+m.ids[2]+"/docs/new%20name.txt", http.StatusOK)
	if thread := threadOf(view, moved); !strings.Contains(thread, "docs/new name.txt:5-6") ||
		!strings.Contains(thread, "was old name.txt:5-6") ||
		strings.Index(view, thread) > strings.Index(view, `id="L7"`) {
		t.Errorf("thread about a renamed file: got %s in %s", thread, view)
	}
	view = w.get(t, read, tree+m.ids[2]+"/docs/read%20me.txt", http.StatusOK)
	if thread := threadOf(view, gone); !strings.Contains(thread, "outdated") ||
		strings.Index(view, thread) < strings.Index(view, `id="L3"`) {
		t.Errorf("outdated thread: got %s in %s", thread, view)
	}
	wants(t, w.get(t, read, tree+m.ids[2]+"/new.txt", http.StatusOK), `id="t-`+file+`"`)
	// The page of a branch shows the threads of a session only if the link names the session.
	if view = w.get(t, read, "/ui/team/app/tree/main/docs/read%20me.txt", http.StatusOK); strings.Contains(view,
		`class="thread`) {
		t.Errorf("file of a branch has threads: %s", view)
	}
	view = w.get(t, read, "/ui/team/app/tree/main/docs/read%20me.txt?s=fix", http.StatusOK)
	if thread := threadOf(view, gone); strings.Contains(thread, "outdated") ||
		strings.Index(view, thread) > strings.Index(view, `id="L3"`) {
		t.Errorf("thread in the file before the change: got %s in %s", thread, view)
	}

	all := html.UnescapeString(w.get(t, read, "/ui/team/app/diff?a=main&b=fix@", http.StatusOK))
	diff := w.get(t, read, link(t, w.get(t, read, "/ui/team/app/s/fix?at="+m.ids[0], http.StatusOK), ">main.go<"),
		http.StatusOK)
	if thread := threadOf(diff, hello); thread == "" ||
		strings.Index(diff, thread) < strings.Index(diff, `<ins data-n="3">`) ||
		strings.Index(diff, thread) > strings.Index(diff, `<ins data-n="4">`) {
		t.Errorf("thread about an added line: got %s in %s", thread, diff)
	}
	for _, c := range []struct {
		file, id, after, before string
	}{
		{"docs/read me.txt", gone, `<del data-n="2">`, `data-n="3"`},
		{"docs/new name.txt", moved, `<span data-n="6">`, `14 lines</`},
		{"docs/new name.txt", far, `<span data-n="20">`, "<p class=\"links\">"},
		{"new.txt", file, `<ins data-n="1">`, "</main>"},
	} {
		name := strings.ReplaceAll(strings.ReplaceAll(c.file, "/", "%2F"), " ", "\\+")
		path := regexp.MustCompile(`href="(/ui/team/app/diff/file[^"]*path=` + name + `&[^"]*)"`).FindStringSubmatch(all)
		if path == nil {
			t.Fatalf("difference lacks a link to %s: %s", c.file, all)
		}
		diff := w.get(t, read, path[1], http.StatusOK)
		thread := threadOf(diff, c.id)
		if at := strings.Index(diff, thread); thread == "" || at < strings.Index(diff, c.after) ||
			at > strings.LastIndex(diff, c.before) && strings.Contains(diff, c.before) {
			t.Errorf("thread in the difference of %s: got %q in %s", c.file, thread, diff)
		}
	}
}

// placedActs fails the test if the approvals of a session are read for a page that has a place, with its memory.
type placedActs struct {
	ui.Acts
	t      *testing.T
	memory *places.Memory
}

func (a placedActs) Approvals(ctx context.Context, by review.By, repo records.Repo,
	name string) ([]review.Approval, error) {
	if used := a.memory.Used(); used > 0 {
		a.t.Errorf("the approvals are read while the page has a place with %d bytes of memory", used)
	}
	return a.Acts.Approvals(ctx, by, repo, name)
}

// TestApprovals checks that the approvals of a session are shown with their states, votes and reasons, and with the
// policy that applies.
func TestApprovals(t *testing.T) {
	m := smallSession(t)
	main := gittest.Must(t, m.dir, "rev-parse", "main")
	tree := func(checkpoint string) string {
		return gittest.Must(t, m.dir, "rev-parse", m.commitOf(checkpoint)+"^{tree}")
	}
	now := time.Now()
	log, file := approval.Log{Session: "fix"}, []byte(nil)
	add := func(r approval.Record) string {
		t.Helper()
		next, added, err := log.Append(file, r, now)
		if err != nil {
			t.Fatal(err)
		}
		file = next
		return added.ID
	}
	request := func(subject approval.Subject, expires time.Duration) string {
		return add(approval.Record{Op: approval.Request, Actor: "agent", Token: "1", Subject: &subject,
			Time: now.Add(-time.Hour), Expires: now.Add(expires), Reviewers: []string{"alice", "bob"}, Text: "please <merge>"})
	}
	change := approval.Subject{Action: approval.Merge, Checkpoint: m.ids[2], Tree: tree(m.ids[2]),
		Target: "refs/heads/main", Base: main}
	newest, old, moved, docs := change, change, change, change
	old.Checkpoint, old.Tree = m.ids[0], tree(m.ids[0])
	moved.Base = strings.Repeat("7", 40)
	docs.Target = "refs/heads/docs"
	open := request(newest, time.Hour)
	void := request(old, time.Hour)
	denied := request(newest, time.Hour)
	add(approval.Record{Op: approval.Deny, Actor: "bob", Token: "3", Request: denied, Text: "not yet"})
	withdrawn := request(newest, time.Hour)
	add(approval.Record{Op: approval.Withdraw, Actor: "agent", Token: "1", Request: withdrawn})
	expired := request(newest, -time.Minute)
	elsewhere := request(moved, time.Hour)
	deletion := request(approval.Subject{Action: approval.Delete, Checkpoint: m.ids[2], Tree: tree(m.ids[2])}, time.Hour)
	granted := request(newest, time.Hour)
	for i, who := range []string{"alice", "bob"} {
		add(approval.Record{Op: approval.Grant, Actor: who, Token: fmt.Sprint(i + 2), Request: granted, Text: "fine"})
		add(approval.Record{Op: approval.Grant, Actor: who, Token: fmt.Sprint(i + 2), Request: deletion})
	}
	m.store(approval.Ref("fix"), approval.LogFile, file)
	policy, err := json.Marshal(approval.Policy{Version: 1, Branches: []approval.BranchRule{
		{Match: "main", Need: approval.Need{Quorum: 1, Reviewers: []string{"alice", "carol"}}},
		{Match: "main", Paths: []string{"docs/**"}, Need: approval.Need{Quorum: 2, TTL: approval.TTL(48 * time.Hour)}},
		{Match: "main", Paths: []string{"deploy/**"}, Need: approval.Need{Quorum: 3}},
		{Match: "release/*", Need: approval.Need{Quorum: 5}}},
		Sessions: []approval.SessionRule{{Match: "fix", Need: approval.Need{Quorum: 1, Self: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	m.store(approval.PolicyRef, approval.PolicyFile, policy)
	memory := places.NewMemory(512<<20, 0) // of which nothing is kept for idle processes
	w := newWorld(t, func(o *ui.Options) { o.Memory, o.Acts = memory, placedActs{o.Acts, t, memory} })
	dir := m.done()
	read := w.reader(t, w.repo(t, "team", "app", dir))
	page := w.get(t, read, "/ui/team/app/s/fix", http.StatusOK)
	for id, want := range map[string][]string{
		open: {"merge into main", "open", "It needs 1 more approval of alice, carol, and 2 more approvals.",
			"please &lt;merge&gt;", "by <strong>agent</strong>", "of alice, bob"},
		void:      {"void", "newest checkpoint is " + m.ids[2]},
		denied:    {"denied", "not yet", "<strong>bob</strong>"},
		withdrawn: {"withdrawn"},
		expired:   {"expired"},
		elsewhere: {"open", "main has moved from 7777777777 to " + main[:10]},
		deletion:  {"delete the session", "granted"},
		granted:   {`class="state granted"`, "alice", "bob", "fine", "/diff?a=" + main},
	} {
		section := regexp.MustCompile(`(?s)<section class="request"[^>]*id="r-` + id + `".*?</section>`).FindString(page)
		if section == "" {
			t.Errorf("page lacks request %s", id)
		}
		wants(t, section, want...)
	}
	wants(t, page, "changes of main: 1 approval by alice, carol; requests are valid for 7 days",
		"changes of main that touch docs/**: 2 approvals; requests are valid for 2 days",
		"deploy/**: 3 approvals", "deletion of this session: 1 approval; who requests may approve too")
	if strings.Contains(page, "release/") {
		t.Error("page shows a rule for another branch")
	}

	// Damaged approvals and an invalid policy are reported.
	for ref, text := range map[string]string{approval.Ref("fix"): "not approvals\n", approval.PolicyRef: `{"version":9}`} {
		names := map[string]string{approval.Ref("fix"): approval.LogFile, approval.PolicyRef: approval.PolicyFile}
		m.store(ref, names[ref], []byte(text))
	}
	other := w.repo(t, "team", "damaged", dir)
	wants(t, w.get(t, w.reader(t, other), "/ui/team/damaged/s/fix", http.StatusOK),
		"approvals of this session cannot be read", "The policy cannot be applied")
}
