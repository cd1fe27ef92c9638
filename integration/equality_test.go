package integration

import (
	"testing"

	"github.com/artifactfs/artifactfs/internal/gittest"
	"github.com/artifactfs/artifactfs/object"
)

func TestTrickyTreeEqualsClone(t *testing.T) {
	w := newWorld(t)
	must[object.ID](t)(w.repo("tricky.git", object.SHA1).Tricky())
	url := w.serve(gittest.ServerOptions{}).URL("tricky.git")
	clone := w.clone(url)
	m := w.mount(url)
	w.compareTrees(m.Dir, clone)
}
