package capture_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// TestRequiredFilterFails checks that the raw contents of a file are never stored while its required filter fails, that
// the checkpoint keeps the previous contents, and that later checkpoints convert the file again.
func TestRequiredFilterFails(t *testing.T) {
	const attributes = "*.enc filter=lock\n*.opt filter=soft\n"
	w := newWorld(t, object.SHA1, map[string]gittest.File{".gitattributes": text(attributes), "a.enc": text("OLD\n"),
		"moves.enc": text("BASE\n")})
	key := filepath.Join(w.dir, "key")
	for name, value := range map[string]string{"lock.clean": "test -e " + key + " && tr a-z A-Z", "lock.required": "true",
		"soft.clean": "false"} {
		w.git(w.plain, "config", "filter."+name, value)
	}
	settings := convert.Settings{Drivers: map[string]convert.Driver{
		"lock": {Name: "lock", Clean: true, Required: true}, "soft": {Name: "soft", Clean: true}}}
	base := []*convert.File{settings.Parse([]byte(attributes), true)}
	w.o.Converts = func(_ context.Context, path string) (bool, error) { return convert.Returns(settings, base, path), nil }
	w.openCapturer()
	check := func(step string, left string, want map[string]string) {
		t.Helper()
		p, r := w.checkpoint(session.Manual)
		for path, content := range want {
			if mode, got := w.in(p.Tree, path); got != content || (mode == 0) != (content == "") {
				t.Errorf("%s: %s: got mode %o and contents %q, want %q", step, path, mode, got, content)
			}
		}
		var paths []string
		for _, l := range r.Left {
			paths = append(paths, l.Path)
		}
		if slices.Sort(paths); reasons(r.Left) != left || !slices.Equal(r.Unfiltered, paths) {
			t.Errorf("%s: left out: got %s, unfiltered %v, want %s", step, reasons(r.Left), r.Unfiltered, left)
		}
		for _, raw := range []string{"new text\n", "fresh\n", "newer\n"} {
			id, err := object.Hash(object.SHA1, object.Blob, []byte(raw))
			must(t, err)
			if _, _, err := w.repo.Get(id, 100); err == nil {
				t.Errorf("%s: the contents %q are stored", step, raw)
			}
		}
	}

	w.write("a.enc", "new text\n")
	w.write("sub/b.enc", "fresh\n")
	w.write("c.opt", "optional\n")
	old := map[string]string{"a.enc": "OLD\n", "sub/b.enc": "", "c.opt": "optional\n"}
	check("without the key", "a.enc filter, sub/b.enc filter", old)
	check("once more", "a.enc filter, sub/b.enc filter", old)
	w.restart()
	check("after a restart", "a.enc filter, sub/b.enc filter", old)
	must(t, os.WriteFile(key, nil, 0o600))
	check("with the key", "", map[string]string{"a.enc": "NEW TEXT\n", "sub/b.enc": "FRESH\n", "c.opt": "optional\n"})

	must(t, os.Remove(key))
	w.write("a.enc", "newer\n")
	must(t, os.Remove(w.o.Memory)) // so that everything that differs from the base tree is read again
	w.restart()
	check("without memory", "a.enc filter, sub/b.enc filter", map[string]string{"a.enc": "NEW TEXT\n",
		"sub/b.enc": "FRESH\n"})
	must(t, w.rename("moves.enc", "sub/moved.enc"))
	check("moved", "a.enc filter, sub/b.enc filter, sub/moved.enc filter", map[string]string{"moves.enc": "",
		"sub/moved.enc": "BASE\n"})
	w.remove("a.enc")
	check("removed", "sub/b.enc filter, sub/moved.enc filter", map[string]string{"a.enc": "", "sub/b.enc": "FRESH\n"})
}
