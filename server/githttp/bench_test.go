package githttp

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/access"
)

// backend serves the bare repositories in a directory by git http-backend.
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
	for _, setting := range []string{"http.receivepack=true", "uploadpack.allowFilter=true",
		"uploadpack.allowAnySHA1InWant=true"} {
		name, value, _ := strings.Cut(setting, "=")
		w.do(path, "config", name, value)
	}
	return path, strings.Replace(w.backend(dir).URL, "://", "://x:y@", 1) + "/bare.git"
}

// BenchmarkGit compares git commands on this server with the same commands on git http-backend with a bare repository.
// The commands alternate, so that other load of the host affects both; the results are medians.
func BenchmarkGit(b *testing.B) {
	w := newWorld(b, Limits{})
	_, ours := w.repo("r", "sha1")
	_, theirs := w.bare("sha1")
	work := w.work("sha1")
	n := 0
	for _, c := range []struct {
		name    string
		commits bool
		args    func(url string) []string
	}{
		{"push", true, func(url string) []string { return []string{"push", "-q", url, "main"} }},
		{"push-checkpoint", true,
			func(url string) []string { return []string{"push", "-q", url, "main:refs/afs/j/s/main/1"} }},
		{"ls-remote", false, func(url string) []string { return []string{"ls-remote", "-q", url} }},
		{"fetch-nothing", false, func(url string) []string { return []string{"fetch", "-q", url, "main"} }},
		{"clone", false, func(url string) []string { return []string{"clone", "-q", "--bare", url, b.TempDir()} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var times [2][]time.Duration
			for b.Loop() {
				if n++; c.commits {
					w.commit(work, "file", strconv.Itoa(n))
				}
				for i, url := range []string{ours, theirs} {
					begin := time.Now()
					w.do(work, c.args(url)...)
					times[i] = append(times[i], time.Since(begin))
				}
			}
			for i, unit := range []string{"ms-ours", "ms-backend"} {
				slices.Sort(times[i])
				b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds())/1000, unit)
			}
		})
	}
}
