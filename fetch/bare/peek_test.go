package bare

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestPeek(t *testing.T) {
	dir := t.TempDir()
	if _, ok := Peek(dir); ok {
		t.Error("Peek of an empty directory returned a store")
	}
	const url = `https://127.0.0.1/a "b" \ c.git`
	git := filepath.Join(dir, "git")
	if _, err := Run(t.Context(), dir, "init", "-q", "--bare", "--object-format=sha256", git); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(git, "config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("[remote \"origin\"]\n\turl = " + `"https://127.0.0.1/a \"b\" \\ c.git"` +
		"\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	i, ok := Peek(dir)
	if !ok || i.URL != url || i.Format != object.SHA256 || i.Objects != filepath.Join(git, "objects") ||
		i.Sizes != filepath.Join(dir, "sizes") {
		t.Errorf("Peek = %+v, %v", i, ok)
	}
}
