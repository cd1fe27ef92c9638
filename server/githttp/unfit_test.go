package githttp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestUnfitPushes checks that the server refuses objects that readers of the repository cannot read, and refs that
// clones cannot fetch or that prevent others, with a line that states the reason.
func TestUnfitPushes(t *testing.T) {
	w := newWorld(t, Limits{})
	repo, url := w.repo("r", "sha1")
	dir := w.work("sha1")
	w.do(dir, "push", "-q", url, "main")
	store := func(kind, text string) string {
		file := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return w.do(dir, "hash-object", "-t", kind, "-w", file)
	}
	tip, root := w.do(dir, "rev-parse", "main"), w.do(dir, "rev-parse", "main^{tree}")
	blob := w.do(dir, "rev-parse", "main:file")
	head := "author " + person + "\ncommitter " + person + "\n\n"
	huge := store("commit", "tree "+root+"\n"+head+strings.Repeat("a", 1<<20))
	below := store("commit", "tree "+root+"\nparent "+huge+"\n"+head)
	tag := store("tag", "object "+tip+"\ntype commit\ntag t\ntagger "+person+"\n\n"+strings.Repeat("a", 1<<20))
	var entries strings.Builder
	for i := range 70_000 { // makes a tree of 17 MiB
		entries.WriteString(fmt.Sprintf("100644 %s%06d\x00", strings.Repeat("n", 220), i) + rawID(blob))
	}
	large := store("tree", entries.String())
	wide := store("commit", "tree "+large+"\n"+head)
	for what, c := range map[string][2]string{
		"huge commit":            {huge + ":refs/heads/x", "and can have 1048576"},
		"huge commit in history": {below + ":refs/heads/x", "and can have 1048576"},
		"huge tag":               {tag + ":refs/tags/x", "and can have 1048576"},
		"large tree":             {wide + ":refs/heads/x", "and can have 16777216"},
		"long component":         {"main:refs/heads/" + strings.Repeat("a", 251), "each of its components 250"},
		"long directory":         {"main:refs/heads/" + strings.Repeat("a", 251) + "/x", "each of its components 250"},
		"long name": {"main:refs/heads/" + strings.Repeat("abcdefghij/", 100) + "x",
			"can have at most 1024 bytes"},
		"below the owner": {blob + ":refs/afs/owner/x", "no ref can be below refs/afs/owner"},
		"kind of refs":    {"main:refs/afs/meta", "have the name of a session"},
	} {
		t.Run(what, func(t *testing.T) { w.refused(c[1], dir, "push", url, c[0]) })
	}
	longest := "refs/heads/" + strings.Repeat("a", 250)
	w.do(dir, "push", "-q", url, "main:"+longest)
	w.do(t.TempDir(), "clone", "-q", url, "c")

	rules, err := access.SessionRules("s")
	if err != nil {
		t.Fatal(err)
	}
	_, text := w.token(records.Token{RepoID: repo.ID, Session: "s", Rules: rules})
	own := w.url("r", text)
	w.refused("token does not allow pushes to this ref", dir, "push", own, "main:refs/notes/commits/x")
	w.refused("no ref can be below refs/afs/owner", dir, "push", own, blob+":refs/afs/owner/s")
	w.do(dir, "push", "-q", own, "main:refs/notes/commits")
	if refs := w.refs(repo); len(refs) != 3 {
		t.Errorf("refs: got %v, want main, the longest one and the notes", refs)
	}
}

// rawID returns the bytes of a hexadecimal object id.
func rawID(id string) string {
	text := tree(id, "x")
	return text[len("100644 x\x00"):]
}
