package integration

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/client"
)

// The server shows a thin session like any other: its timeline, the prompts, the difference of changed and removed
// files from the base, a comparison with another session, and threads about lines.
func TestThinSessionIsShown(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	r := w.repo("source.git", object.SHA1)
	lines := strings.Repeat("a line of the base\n", 300)
	w.commit(r, map[string]gittest.File{"dir/deep/edited.txt": {Data: []byte("first\n" + lines)},
		"dir/deep/other.txt": {Data: []byte("other\n")},
		"dir/removed.txt":    {Data: []byte("removed\n")},
		"dir/unread.bin":     {Data: bytes.Repeat([]byte("unread\n"), 100_000)},
		"untouched/file.txt": {Data: []byte("untouched\n")}})
	u := w.serve(gittest.ServerOptions{}).URL("source.git")
	flags := []string{"--session-remote", "team/work", "--create=session-remote", "--wait", "git"}
	m := w.bare(u, append(flags, "--session", "one")...)
	m.record(`{"type":"prompt","text":"Change the first line"}`)
	// The contents of a file that was never read are not on this host when it is removed.
	w.sh(m.Dir,
		"cat dir/removed.txt >/dev/null && rm dir/unread.bin && sed -i 's/^first$/changed/' dir/deep/edited.txt && rm dir/removed.txt && echo new >dir/new.txt")
	first := m.checkpoint("--sync", "-m", "the edit")
	w.sh(m.Dir, "git add -A && git commit -qm 'a commit' && echo more >>untouched/file.txt")
	second := m.checkpoint("--sync", "-m", "another file")
	if st := m.status().Session; st.Mode != "thin" {
		t.Fatalf("session: got mode %s, want thin", st.Mode)
	}
	other := w.bare(u, append(flags, "--session", "two")...)
	w.sh(other.Dir, "sed -i 's/^first$/otherwise/' dir/deep/edited.txt && echo new >dir/deep/third.txt")
	other.checkpoint("--sync", "-m", "of another session")

	ext := api.Extensions().Repository("team", "work")
	one := must[client.Session](t)(ext.Session(t.Context(), "one"))
	if !one.Thin || one.Checkpoint != second.ID {
		t.Errorf("session: got %+v, want a thin one whose newest checkpoint is %s", one, second.ID)
	}
	var found []string
	for p, err := range ext.Checkpoints(t.Context(), "one") {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, p.ID)
	}
	if i, j := slices.Index(found, second.ID), slices.Index(found, first.ID); i < 0 || j < i {
		t.Errorf("checkpoints: got %v, want %s and then %s", found, second.ID, first.ID)
	}
	compared := must[client.Comparison](t)(ext.Compare(t.Context(), "one@", "two@"))
	side := compared.Sides[0]
	if side.Modified != 2 || side.Removed != 2 || side.Added != 1 || side.LinesAdded != 3 || side.LinesRemoved != 2 {
		t.Errorf("changes of the first session: got %+v, want 2 modified files, 2 removed ones and 1 new one", side)
	}
	if p := compared.Pairs[0]; !slices.Equal(p.Conflicts, []string{"dir/deep/edited.txt"}) {
		t.Errorf("conflicts: got %v", p.Conflicts)
	}
	thread := must[client.Thread](t)(ext.Annotate(t.Context(), "one", client.Annotate{Text: "why?", Checkpoint: second.ID,
		Path: "dir/deep/edited.txt", Line: 1}))

	token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "work", Scope: "read"}))
	p := pageOf{t, c.proxy.url(), token.Plaintext}
	p.wants("/ui/team/work", `href="/ui/team/work/s/one"`, "5 files", "of another session")
	p.wants("/ui/team/work/s/one", "This session is thin", "the edit", "another file", "a commit",
		"Change the first line", first.ID)
	p.wants("/ui/team/work/s/one?part=cursor&at="+first.ID, "edited.txt", "removed.txt", "new.txt")
	diff := p.wants("/ui/team/work/diff?s=one&a="+one.Base+"&b=one@"+first.ID, "edited.txt", "deleted",
		"added", "modified")
	if strings.Contains(diff, "does not have all objects") {
		t.Errorf("difference from the base: %.4000s", diff)
	}
	at := side.Commit
	p.wants("/ui/team/work/diff/file?s=one&a="+one.Base+"&b="+at+"&path=dir%2Fdeep%2Fedited.txt", "first", "changed",
		"why?", thread.ID)
	p.wants("/ui/team/work/diff/file?s=one&a="+one.Base+"&b="+at+"&path=dir%2Fremoved.txt", "removed")
	p.wants("/ui/team/work/diff/file?s=one&a="+one.Base+"&b="+at+"&path=dir%2Funread.bin", "does not have all objects")
	p.wants("/ui/team/work/compare?p=one@&p=two@", "dir/deep/edited.txt", "1 in conflict")
	p.wants("/ui/team/work/tree/one@/dir/deep/edited.txt", "changed")
}

// A thin session that a policy protects can be deleted with an approval of its newest checkpoint, which is in its
// container; another checkpoint voids the approval.
func TestThinSessionIsDeletedWithApproval(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	r := w.repo("source.git", object.SHA1)
	w.commit(r, sample("thin"))
	u := w.serve(gittest.ServerOptions{}).URL("source.git")
	m := w.as("agent").bare(u, "--session-remote", "team/work", "--create=session-remote", "--wait", "git", "--session",
		"work", "--checkpoint", "off")
	w.sh(m.Dir, "echo new >new")
	m.checkpoint("--sync")
	if st := m.status().Session; st.Mode != "thin" {
		t.Fatalf("session: got mode %s, want thin", st.Mode)
	}
	work := must[*url.URL](t)(url.Parse(c.proxy.url() + "/git/team/work.git"))
	as := func(token string) string { // URL of the repository with a token
		work.User = url.UserPassword("x", token)
		return work.String()
	}
	policy := filepath.Join(w.root, "policy")
	w.check(os.WriteFile(policy, []byte(`{"version":1,"sessions":[{"match":"work","quorum":1,"reviewers":["alice"]}]}`),
		0o600))
	w.ok("session", "policy", "--set", policy, "--remote", as(c.token))
	token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
		client.CreateToken{Repo: "work", Scope: client.Write, Actor: "alice"}))
	alice := as(token.Plaintext)
	grant := func(link string) {
		t.Helper()
		_, fragment, _ := strings.Cut(link, "#")
		if got := w.elsewhere().afs("session", "review", "grant", alice+"#"+fragment); got.code != 0 ||
			!strings.Contains(got.stdout, "status: granted") {
			t.Fatalf("grant of the deletion: got %s", got)
		}
	}
	grant(w.requested("--for", "delete").Link)
	w.sh(m.Dir, "echo newer >new")
	m.checkpoint("--sync")
	w.unmount(m)
	link := w.requested("--for", "delete").Link
	if got := w.ok("session", "review", "list", "-C", "work"); !strings.Contains(got, "delete") {
		t.Errorf("approvals of a session that is not mounted: got %s", got)
	}
	remove := []string{"session", "delete", "work", "--yes"}
	if got := w.afs(remove...); got.code == 0 || !strings.Contains(got.stderr, "session work is protected") {
		t.Fatalf("deletion after another checkpoint: got %s", got)
	}
	grant(link)
	w.ok(remove...)
	if got := w.git(w.root, "ls-remote", alice, "refs/afs/meta/*"); got != "" {
		t.Errorf("sessions after the deletion: got %s, want none", got)
	}
}
