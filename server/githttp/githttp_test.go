package githttp

import (
	"testing"
)

func TestPushAndClone(t *testing.T) {
	w := newWorld(t, Limits{})
	for _, format := range []string{"sha1", "sha256"} {
		repo, url := w.repo("r-"+format, format)
		work := w.work(format)
		w.do(work, "push", "-q", url, "main")
		if got, want := w.refs(repo)["refs/heads/main"], w.do(work, "rev-parse", "HEAD"); got != want {
			t.Errorf("main after push: got %s, want %s", got, want)
		}
		for _, version := range []string{"0", "1", "2"} {
			dir := t.TempDir()
			w.do(dir, "-c", "protocol.version="+version, "clone", "-q", url, "c")
			if got := w.do(dir+"/c", "log", "--format=%s"); got != "one" {
				t.Errorf("%s, version %s: log of clone: %q", format, version, got)
			}
		}
	}
}
