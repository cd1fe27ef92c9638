package githttp

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/internal/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
)

// backend serves the bare repositories in a directory with git http-backend.
func (w *world) backend(dir string) *httptest.Server {
	w.t.Helper()
	exec := w.do(w.t.TempDir(), "--exec-path")
	git := &cgi.Handler{
		Path: filepath.Join(exec, "git-http-backend"), Dir: dir,
		Env: append(gittest.Env(), "GIT_PROJECT_ROOT="+dir, "GIT_HTTP_EXPORT_ALL=1"), InheritEnv: []string{"PATH"},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", access.Challenge)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		git.ServeHTTP(w, r)
	}))
	w.t.Cleanup(s.Close)
	return s
}

// bare creates a bare repository that http-backend serves, and returns its path and its URL.
func (w *world) bare(format string) (path, url string) {
	w.t.Helper()
	dir := w.t.TempDir()
	path = filepath.Join(dir, "bare.git")
	w.do(dir, "init", "-q", "--bare", "-b", "main", "--object-format="+format, path)
	for _, setting := range []string{"http.receivepack=true", "uploadpack.allowFilter=true", "uploadpack.allowAnySHA1InWant=true"} {
		name, value, _ := strings.Cut(setting, "=")
		w.do(path, "config", name, value)
	}
	return path, strings.Replace(w.backend(dir).URL, "://", "://x:y@", 1) + "/bare.git"
}

// BenchmarkGit compares commands of git on this server and on git http-backend with a bare repository.
func BenchmarkGit(b *testing.B) {
	w := newWorld(b, Limits{})
	_, ours := w.repo("r", "sha1")
	_, theirs := w.bare("sha1")
	for _, server := range []struct{ name, url string }{{"ours", ours}, {"http-backend", theirs}} {
		work := w.work("sha1")
		w.do(work, "push", "-q", server.url, "main")
		n := 0
		b.Run("push/"+server.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				n++
				w.commit(work, "file", strconv.Itoa(n))
				b.StartTimer()
				w.do(work, "push", "-q", server.url, "main")
			}
		})
		b.Run("push-afs/"+server.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				n++
				w.commit(work, "file", strconv.Itoa(n))
				b.StartTimer()
				w.do(work, "push", "-q", server.url, "main:refs/afs/j/s/main/1")
			}
		})
		b.Run("ls-remote/"+server.name, func(b *testing.B) {
			for b.Loop() {
				w.do(work, "ls-remote", "-q", server.url)
			}
		})
		b.Run("clone/"+server.name, func(b *testing.B) {
			for b.Loop() {
				w.do(b.TempDir(), "clone", "-q", "--bare", server.url, "c")
			}
		})
	}
}
