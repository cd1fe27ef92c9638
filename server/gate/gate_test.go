package gate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const onePolicy = `{"version":1,"branches":[{"match":"main","quorum":1}],"sessions":[{"match":"work","quorum":1}]}`

// bed is a repository before a push. The objects of the push are in a pack.
type bed struct {
	t      testing.TB
	dir    string // git directory
	format object.Format
	refs   map[string]string
	logs   map[string]*logFile
	// commits is the number of calls of the method make.
	commits int
}

type logFile struct {
	log  approval.Log
	file []byte
}

func newBed(t testing.TB, f object.Format) *bed {
	t.Helper()
	b := &bed{t: t, dir: filepath.Join(t.TempDir(), "r.git"), format: f, refs: map[string]string{},
		logs: map[string]*logFile{}}
	gittest.Must(t, "/", "init", "--quiet", "--bare", "--object-format="+f.String(), b.dir)
	return b
}

func (b *bed) git(stdin string, args ...string) string {
	b.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env, cmd.Stdin = b.dir, gittest.Env(), strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("git %s: %v", args[0], err)
	}
	return strings.TrimSpace(string(out))
}

// commit stores a commit with files, and returns its id.
func (b *bed) commit(parent string, files map[string]string) string {
	b.t.Helper()
	index := filepath.Join(b.t.TempDir(), "index")
	for name, text := range files {
		mode := "100644"
		id := text
		if !strings.HasPrefix(name, "module") {
			id = b.git(text, "hash-object", "-w", "--stdin")
		} else {
			mode = "160000"
		}
		cmd := exec.Command("git", "update-index", "--add", "--cacheinfo", mode+","+id+","+name)
		cmd.Dir, cmd.Env = b.dir, append(gittest.Env(), "GIT_INDEX_FILE="+index)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.t.Fatalf("%v: %s", err, out)
		}
	}
	cmd := exec.Command("git", "write-tree")
	cmd.Dir, cmd.Env = b.dir, append(gittest.Env(), "GIT_INDEX_FILE="+index)
	tree, err := cmd.Output()
	if err != nil {
		b.t.Fatal(err)
	}
	args := []string{"commit-tree", "-m", "commit", strings.TrimSpace(string(tree))}
	if parent != "" {
		args = append(args, "-p", parent)
	}
	return b.git("", args...)
}

func (b *bed) zeros() string { return strings.Repeat("0", 2*b.format.Size()) }

// policy sets the policy of the repository.
func (b *bed) policy(text string) {
	b.t.Helper()
	b.refs[approval.PolicyRef] = b.commit("", map[string]string{approval.PolicyFile: text})
}

// add adds a record to the approvals of a session, and returns its id.
func (b *bed) add(name string, r approval.Record) string {
	b.t.Helper()
	l := b.logs[name]
	if l == nil {
		l = &logFile{log: approval.Log{Session: name}}
		b.logs[name] = l
	}
	if r.Op == approval.Request {
		r.Expires = now.Add(time.Hour)
	}
	var err error
	if l.file, r, err = l.log.Append(l.file, r, now); err != nil {
		b.t.Fatal(err)
	}
	b.refs[approval.Ref(name)] = b.commit(b.refs[approval.Ref(name)], map[string]string{approval.LogFile: string(l.file)})
	return r.ID
}

// approve adds a request and a grant for a change of the branch main to a commit.
func (b *bed) approve(name, base, commit string) string {
	b.t.Helper()
	id := b.add(name, approval.Record{Op: approval.Request, Actor: "agent",
		Subject: &approval.Subject{Action: approval.Merge,
			Tree: b.git("", "rev-parse", commit+"^{tree}"), Target: "refs/heads/main", Base: base, Commit: commit}})
	b.add(name, approval.Record{Op: approval.Grant, Actor: "alice", Token: "t", Request: id})
	return id
}

// checkpoint adds a checkpoint to a session.
func (b *bed) checkpoint(name, commit string) string {
	b.t.Helper()
	id := func(text string) object.ID {
		parsed, err := object.ParseIDOf(b.format, text)
		if err != nil {
			b.t.Fatal(err)
		}
		return parsed
	}
	p := session.Checkpoint{ID: session.NewCheckpointIDAfter(now, ""), Session: name, Lane: "main", Segment: 1, Time: now,
		Tree: id(b.git("", "rev-parse", commit+"^{tree}")), State: id(commit), Head: id(commit)}
	b.refs[session.SegmentRef(name, "main", 1)] = b.git(string(p.Encode(object.ID{})), "hash-object", "-w", "-t",
		"commit", "--stdin")
	return string(p.ID)
}

var writer = records.Token{ID: "t", Role: records.RepoToken, Actor: "writer"}

// check passes updates to the gate, and returns their results as texts.
func (b *bed) check(token records.Token, updates ...records.RefUpdate) ([]string, Verdict) {
	b.t.Helper()
	b.pack()
	results := make([]error, len(updates))
	v, err := Check(b.t.Context(), Push{
		Git: gitcmd.Confined{Env: gittest.Env()}, Dir: b.dir, Format: b.format.String(), Token: token,
		Updates: updates, Now: now,
		Forced: func(ctx context.Context, u records.RefUpdate) (bool, error) {
			return exec.Command("git", "--git-dir="+b.dir, "merge-base", "--is-ancestor", u.Old, u.New).Run() != nil, nil
		},
	}, results)
	if err != nil {
		b.t.Fatal(err)
	}
	var texts []string
	for _, err := range results {
		texts = append(texts, "")
		if err != nil {
			texts[len(texts)-1] = err.Error()
		}
	}
	return texts, v
}

// pack writes all objects to a pack, and the refs to packed-refs.
func (b *bed) pack() {
	b.t.Helper()
	ids := b.git("", "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
	b.git(ids+"\n", "pack-objects", "--quiet", "objects/pack/pack")
	text := "# pack-refs with: sorted \n"
	names := []string{}
	for name := range b.refs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text += b.refs[name] + " " + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(b.dir, "packed-refs"), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// one passes one update to the gate, and returns its result as a text.
func (b *bed) one(token records.Token, name, to string) (string, Verdict) {
	b.t.Helper()
	old := b.refs[name]
	if old == "" {
		old = b.zeros()
	}
	if to == "" {
		to = b.zeros()
	}
	texts, v := b.check(token, records.RefUpdate{Name: name, Old: old, New: to})
	return texts[0], v
}

func wants(t *testing.T, what, got, want string) {
	t.Helper()
	if want == "" && got != "" || !strings.Contains(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestBranches(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			b := newBed(t, f)
			base := b.commit("", map[string]string{"a": "1"})
			next := b.commit(base, map[string]string{"a": "2"})
			b.refs["refs/heads/main"] = base
			got, v := b.one(writer, "refs/heads/main", next)
			wants(t, "without a policy", got, "")
			if want := []records.Ref{{Name: approval.PolicyRef}}; !slices.Equal(v.Assumed, want) {
				t.Errorf("assumed: got %v, want %v", v.Assumed, want)
			}
			b.policy(onePolicy)
			got, v = b.one(writer, "refs/heads/topic", next)
			wants(t, "not protected", got, "")
			if want := []records.Ref{{Name: approval.PolicyRef, ID: b.refs[approval.PolicyRef]}}; !slices.Equal(v.Assumed,
				want) {
				t.Errorf("assumed: got %v, want %v", v.Assumed, want)
			}
			got, _ = b.one(writer, "refs/tags/main", next)
			wants(t, "tag", got, "")
			got, _ = b.one(writer, "refs/heads/main", next)
			wants(t, "without an approval", got, "main is protected and needs an approval")
			id := b.approve("work", base, next)
			got, v = b.one(writer, "refs/heads/main", next)
			wants(t, "approved", got, "")
			if !slices.Equal(v.Used, []Use{{"refs/heads/main", id, "work"}}) || len(v.Assumed) != 2 ||
				v.Assumed[0] != (records.Ref{Name: approval.Ref("work"), ID: b.refs[approval.Ref("work")]}) {
				t.Errorf("verdict: got %+v", v)
			}
			texts, _ := b.check(writer, records.RefUpdate{Name: "refs/heads/main", Old: next, New: next})
			wants(t, "no change", texts[0], "")
			texts, _ = b.check(writer, records.RefUpdate{Name: "refs/heads/main", Old: next, New: base})
			wants(t, "new value that the branch has already", texts[0], "")
			other := b.commit(base, map[string]string{"a": "3"})
			texts, _ = b.check(writer, records.RefUpdate{Name: "refs/heads/main", Old: next, New: other})
			wants(t, "old value that the branch does not have", texts[0], "stale ref")
			got, _ = b.one(writer, "refs/heads/main", b.commit("", map[string]string{"a": "2"}))
			wants(t, "approved tree without the history", got, "can only be fast-forwarded")
			got, _ = b.one(writer, "refs/heads/main", "")
			wants(t, "removal", got, "cannot be removed")
			delete(b.refs, "refs/heads/main")
			got, _ = b.one(writer, "refs/heads/main", next)
			wants(t, "creation with an approval for a base", got, "needs an approval")
			b.approve("work", "", next)
			got, _ = b.one(writer, "refs/heads/main", next)
			wants(t, "approved creation", got, "")
		})
	}
}

// TestPaths checks that rules for paths apply to all files that differ, including those that git would hide or report
// as renamed.
func TestPaths(t *testing.T) {
	b := newBed(t, object.SHA1)
	b.policy(`{"version":1,"branches":[{"match":"main","paths":["/infra/**","module"],"quorum":1}]}`)
	files := func(more ...string) map[string]string {
		m := map[string]string{"a": "1", "infra/net": "a text that is long enough to be found again",
			".gitmodules": "[submodule \"module\"]\n\tpath = module\n\turl = ./m\n\tignore = all\n"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	base := b.commit("", files("module", strings.Repeat("1", 40)))
	b.refs["refs/heads/main"] = base
	moved := files("module", strings.Repeat("1", 40), "other/net", files()["infra/net"])
	delete(moved, "infra/net")
	for what, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"other path":      {files("module", strings.Repeat("1", 40), "a", "2"), ""},
		"changed file":    {files("module", strings.Repeat("1", 40), "infra/net", "x"), "needs an approval"},
		"new file":        {files("module", strings.Repeat("1", 40), "infra/x/y", "x"), "needs an approval"},
		"moved file":      {moved, "needs an approval"},
		"submodule":       {files("module", strings.Repeat("2", 40)), "needs an approval"},
		"name with lines": {files("module", strings.Repeat("1", 40), "infra/a\nb", "x"), "needs an approval"},
	} {
		got, _ := b.one(writer, "refs/heads/main", b.commit(base, c.files))
		wants(t, what, got, c.want)
	}
	got, _ := b.one(writer, "refs/heads/main", "")
	wants(t, "removal", got, "cannot be removed")
	delete(b.refs, "refs/heads/main")
	got, _ = b.one(writer, "refs/heads/main", base)
	wants(t, "creation", got, "needs an approval")
	got, _ = b.one(writer, "refs/heads/main", b.commit("", map[string]string{"a": "1"}))
	wants(t, "creation without the paths", got, "")
}

// TestPolicyThatCannotBeRead checks that nothing that a policy may protect can be changed while the policy cannot be
// read.
func TestPolicyThatCannotBeRead(t *testing.T) {
	b := newBed(t, object.SHA1)
	base := b.commit("", map[string]string{"a": "1"})
	b.refs["refs/heads/main"], b.refs[session.MetaRef("work")] = base, base
	for what, id := range map[string]string{
		"not JSON": b.commit("", map[string]string{approval.PolicyFile: "x"}), "no file": base,
		"no commit": b.git("x", "hash-object", "-w", "--stdin"),
		"too many rules": b.commit("", map[string]string{approval.PolicyFile: `{"version":1,"branches":[` +
			strings.Repeat(`{"match":"x","quorum":1},`, 1000) + `{"match":"x","quorum":1}]}`}),
		"too large": b.commit("", map[string]string{approval.PolicyFile: strings.Repeat(" ", 2<<20) + onePolicy}),
	} {
		b.refs[approval.PolicyRef] = id
		got, _ := b.one(writer, "refs/heads/topic", base)
		wants(t, what+": branch", got, "refs/afs/policy is not valid")
		got, _ = b.one(writer, session.MetaRef("work"), "")
		wants(t, what+": session", got, "refs/afs/policy is not valid")
		got, _ = b.one(writer, "refs/tags/v1", base)
		wants(t, what+": tag", got, "")
	}
	owner := records.Token{ID: "o", Role: records.OwnerToken}
	got, _ := b.one(owner, approval.PolicyRef, b.commit("", map[string]string{approval.PolicyFile: onePolicy}))
	wants(t, "repair", got, "")
	got, _ = b.one(owner, approval.PolicyRef, "")
	wants(t, "removal", got, "")
	got, _ = b.one(writer, approval.PolicyRef+"/x", base)
	wants(t, "ref below", got, "no refs below")
	b.refs[approval.PolicyRef+"/x"] = base
	got, _ = b.one(writer, approval.PolicyRef+"/x", "")
	wants(t, "removal of a ref below", got, "")
	for _, name := range []string{"refs/afs/approvals", "refs/afs/approvals/a/b", "refs/afs/approvals/.a"} {
		got, _ = b.one(owner, name, base)
		wants(t, name, got, "have the names of sessions")
	}
}

// TestDamagedApprovals checks that approvals that cannot be read do not count, and that others count nevertheless.
func TestDamagedApprovals(t *testing.T) {
	b := newBed(t, object.SHA1)
	base := b.commit("", map[string]string{"a": "1"})
	next := b.commit(base, map[string]string{"a": "2"})
	b.refs["refs/heads/main"] = base
	b.policy(onePolicy)
	b.approve("bad", base, next)
	damaged := strings.Replace(string(b.logs["bad"].file), "alice", "carol", 1)
	b.refs[approval.Ref("bad")] = b.commit("", map[string]string{approval.LogFile: strings.TrimSuffix(damaged, "\n")})
	b.refs[approval.Ref("empty")] = base
	got, _ := b.one(writer, "refs/heads/main", next)
	wants(t, "damaged approvals", got, "needs an approval")
	wants(t, "damaged approvals", got, "the approvals of session bad cannot be read: invalid approval records")
	log := records.Token{ID: "t", Actor: "alice"}
	got, _ = b.one(log, approval.Ref("bad"), b.commit(b.refs[approval.Ref("bad")],
		map[string]string{approval.LogFile: damaged}))
	wants(t, "end of a record that was cut", got, "is by carol, but the token is of alice")
	got, _ = b.one(log, approval.Ref("empty"),
		b.commit(base, map[string]string{approval.LogFile: string(b.logs["bad"].file)}))
	wants(t, "records instead of another file", got, "the approvals cannot be read")
	b.approve("good", base, next)
	got, _ = b.one(writer, "refs/heads/main", next)
	wants(t, "approvals of another session", got, "")
}

func TestDeletionOfSession(t *testing.T) {
	b := newBed(t, object.SHA1)
	base := b.commit("", map[string]string{"a": "1"})
	b.policy(onePolicy)
	for _, name := range []string{session.MetaRef("work"), session.MetaRef("play"), "refs/heads/afs/work/main",
		"refs/afs/trash/work/1/heads/x"} {
		b.refs[name] = base
	}
	point := b.checkpoint("work", base)
	tree := b.git("", "rev-parse", base+"^{tree}")
	request := func(name, checkpoint string) string {
		return b.add(name, approval.Record{Op: approval.Request, Actor: "agent",
			Subject: &approval.Subject{Action: approval.Delete, Tree: tree, Checkpoint: checkpoint}})
	}
	id := request("work", point)
	remove := func(names ...string) (updates []records.RefUpdate) {
		for _, name := range names {
			updates = append(updates, records.RefUpdate{Name: name, Old: b.refs[name], New: b.zeros()})
		}
		return updates
	}
	lane := session.SegmentRef("work", "main", 1)
	all := remove(lane, "refs/heads/afs/work/main", approval.Ref("work"), session.MetaRef("work"),
		"refs/afs/trash/work/1/heads/x")
	got, _ := b.check(writer, all...)
	for i, text := range got {
		want := "session work is protected: request " + id + " needs 1 more approval"
		if i == 4 {
			want = ""
		}
		if text != want {
			t.Errorf("removal of %s: got %q, want %q", all[i].Name, text, want)
		}
	}
	got, _ = b.check(writer, remove(approval.Ref("work"))...)
	wants(t, "removal of the approvals alone", got[0], "only together with the session")
	b.add("work", approval.Record{Op: approval.Grant, Actor: "alice", Token: "a", Request: id})
	all = remove(lane, "refs/heads/afs/work/main", approval.Ref("work"), session.MetaRef("work"))
	got, v := b.check(writer, all...)
	if text := strings.Join(got, ""); text != "" {
		t.Errorf("approved deletion: got %q", got)
	}
	for _, name := range []string{lane, approval.Ref("work"), session.MetaRef("work"), approval.PolicyRef} {
		if !slices.Contains(v.Assumed, records.Ref{Name: name, ID: b.refs[name]}) {
			t.Errorf("assumed refs lack %s: got %v", name, v.Assumed)
		}
	}
	// A removal with a wrong old value is refused later, so the approvals must be kept.
	all[3].Old = strings.Repeat("1", 40)
	got, _ = b.check(writer, all...)
	wants(t, "stale removal of the session", got[3], "stale ref")
	wants(t, "approvals with it", got[2], "stale ref")
	b.checkpoint("work", b.commit("", map[string]string{"a": "3"}))
	got, _ = b.check(writer, remove(session.MetaRef("work"))...)
	wants(t, "newer checkpoint", got[0], "session work is protected")
	got, _ = b.check(writer, remove(session.MetaRef("play"))...)
	wants(t, "session without a rule", got[0], "")
	request("gone", point)
	got, _ = b.check(writer, remove(approval.Ref("gone"))...)
	wants(t, "approvals without their session", got[0], "only together with the session")
	got, _ = b.check(records.Token{ID: "o", Role: records.OwnerToken}, remove(approval.Ref("gone"))...)
	wants(t, "approvals without their session, by the owner", got[0], "")
}

// TestGrantNeedsActor checks that a repository token without a user cannot grant, because each new token would count as
// another user. Owner tokens can grant.
func TestGrantNeedsActor(t *testing.T) {
	for _, c := range []struct {
		role records.Role
		want string
	}{{records.RepoToken, "a token without an actor can request and withdraw, but not grant"}, {records.OwnerToken, ""}} {
		b := newBed(t, object.SHA1)
		base := b.commit("", map[string]string{"a": "1"})
		ref := approval.Ref("work")
		id := b.add("work", approval.Record{Op: approval.Request, Actor: "agent",
			Subject: &approval.Subject{Action: approval.Merge,
				Tree: b.git("", "rev-parse", base+"^{tree}"), Target: "refs/heads/main"}})
		old := b.refs[ref]
		b.add("work", approval.Record{Op: approval.Grant, Actor: "token:x", Token: "x", Request: id})
		next := b.refs[ref]
		b.refs[ref] = old
		got, _ := b.one(records.Token{ID: "x", Role: c.role}, ref, next)
		wants(t, "grant by "+string(c.role), got, c.want)
	}
}

func TestActor(t *testing.T) {
	if got := Actor(records.Token{ID: "x"}); got != "token:x" {
		t.Errorf("token without a name: got %q", got)
	}
	if got := Actor(writer); got != "writer" {
		t.Errorf("token with a name: got %q", got)
	}
}

// BenchmarkWithoutPolicy measures the time that the gate adds to a push of a branch to a repository without a policy.
func BenchmarkWithoutPolicy(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprint(n, "-refs"), func(b *testing.B) {
			dir := b.TempDir()
			var text strings.Builder
			for i := range n {
				fmt.Fprintf(&text, "%s refs/heads/branch%06d\n", strings.Repeat("1", 40), i)
			}
			if err := os.WriteFile(filepath.Join(dir, "packed-refs"), []byte(text.String()), 0o600); err != nil {
				b.Fatal(err)
			}
			p := Push{Dir: dir, Format: "sha1", Token: writer, Now: now,
				Updates: []records.RefUpdate{{Name: "refs/heads/main", Old: strings.Repeat("0", 40), New: strings.Repeat("1", 40)}}}
			results := make([]error, 1)
			for b.Loop() {
				if _, err := Check(b.Context(), p, results); err != nil || results[0] != nil {
					b.Fatal(err, results)
				}
			}
		})
	}
}
