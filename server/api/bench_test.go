package api_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// big returns the git directory with which the benchmarks measure: that of the variable ARTIFACTFS_BENCH_REPO, or a
// small one.
func big(b *testing.B, w *world) string {
	if dir := os.Getenv("ARTIFACTFS_BENCH_REPO"); dir != "" {
		return dir
	}
	return seed(b, w.vars)
}

const reposPath = "/v1/api/namespaces/team/repos"

// create creates the repository base with the contents of a git directory.
func (w *world) create(b *testing.B, gitDir string) {
	if got := w.do(b, w.admin, "POST", reposPath, `{"name":"base"}`); got.status != 201 {
		b.Fatal(got.body)
	}
	w.fill(b, "team", "base", gitDir)
}

func BenchmarkCreate(b *testing.B) {
	w := newWorld(b, nil)
	i := 0
	for b.Loop() {
		i++
		if got := w.do(b, w.admin, "POST", reposPath, fmt.Sprintf(`{"name":"r%d"}`, i)); got.status != 201 {
			b.Fatal(got.body)
		}
	}
}

// BenchmarkFork measures the creation of forks, and the disk space of each fork.
func BenchmarkFork(b *testing.B) {
	for _, kind := range []string{"all", "commit"} {
		b.Run(kind, func(b *testing.B) {
			w := newWorld(b, nil)
			gitDir := big(b, w)
			w.create(b, gitDir)
			field := ""
			if kind == "commit" {
				field = `,"commit":"` + gittest.Must(b, gitDir, "rev-parse", "HEAD~1") + `"`
			}
			before, i := usage(b, w.dir), 0
			for b.Loop() {
				i++
				if got := w.do(b, w.admin, "POST", reposPath+"/base/fork",
					fmt.Sprintf(`{"name":"r%d"%s}`, i, field)); got.status != 201 {
					b.Fatal(got.body)
				}
			}
			b.ReportMetric(float64(usage(b, w.dir)-before)/float64(i), "disk-B/op")
		})
	}
}

// usage returns the disk space of a directory in bytes.
func usage(b *testing.B, dir string) int64 {
	out, err := exec.Command("du", "-s", "--block-size=1", dir).Output()
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func BenchmarkRead(b *testing.B) {
	w := newWorld(b, nil)
	gitDir := big(b, w)
	w.create(b, gitDir)
	tree := gittest.Must(b, gitDir, "rev-parse", "HEAD^{tree}")
	file := gittest.Must(b, gitDir, "ls-tree", "-r", "--name-only", "HEAD")
	file = file[strings.LastIndexByte(file, '\n')+1:]
	commit := gittest.Must(b, gitDir, "rev-parse", "HEAD")
	for _, path := range []string{"/file?ref=main&path=" + file, "/log", "/commit/" + commit, "/tree/" + tree, ""} {
		b.Run(filepath.Base(strings.SplitN(path+"/info", "/", 3)[1]), func(b *testing.B) {
			for b.Loop() {
				if got := w.do(b, w.admin, "GET", reposPath+"/base"+path, ""); got.status != 200 {
					b.Fatal(got.status, got.body)
				}
			}
		})
	}
}
