package capture_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/session"
)

// BenchmarkCheckpoint makes checkpoints of ten changed files in a repository of 100,000 files.
func BenchmarkCheckpoint(b *testing.B) {
	w := largeWorld(b, 1000, 100)
	w.checkpoint(session.Manual)
	var paused, took time.Duration
	n := 0
	for b.Loop() {
		b.StopTimer()
		for i := range 10 {
			w.put(fmt.Sprintf("d%04d/f%04d.txt", i*97%1000, i*7), fmt.Sprintf("changed %d %d\n", i, n))
		}
		b.StartTimer()
		_, r := w.checkpoint(session.Idle)
		if !r.Made {
			b.Fatal("no checkpoint was made")
		}
		paused, took, n = max(paused, r.Paused), max(took, r.Took), n+1
	}
	b.ReportMetric(float64(paused.Microseconds())/1000, "pause-ms")
	b.ReportMetric(float64(took.Microseconds())/1000, "longest-ms")
}

// BenchmarkNewFiles makes a checkpoint of 10,000 new files. For comparison, git commits the same files in a clone.
func BenchmarkNewFiles(b *testing.B) {
	w := largeWorld(b, 1000, 100)
	n := 0
	var git, ours time.Duration
	for b.Loop() {
		b.StopTimer()
		for i := range 10_000 {
			w.write(fmt.Sprintf("new%d/d%02d/f%04d.txt", n, i/100, i), fmt.Sprintf("%d of %d\n%s", i, n, filler[:100+i%3000]))
		}
		b.StartTimer()
		_, r := w.checkpoint(session.Idle)
		b.StopTimer()
		ours += r.Took
		began := time.Now()
		w.git(w.plain, "add", "-A")
		w.git(w.plain, "commit", "-q", "-m", "all")
		git, n = git+time.Since(began), n+1
		b.StartTimer()
	}
	b.ReportMetric(git.Seconds()/float64(n), "git-s/op")
	b.ReportMetric(git.Seconds()/ours.Seconds(), "times-faster")
}

var filler = func() string {
	var s []byte
	for i := range 4000 {
		s = append(s, fmt.Sprintf("%x", i*i*2654435761)...)
	}
	return string(s)
}()

func largeWorld(b *testing.B, dirs, files int) *world {
	b.Helper()
	all := map[string]gittest.File{".gitignore": text("*.o\nbuild/\n")}
	for d := range dirs {
		for f := range files {
			all[fmt.Sprintf("d%04d/f%04d.txt", d, f)] = text(fmt.Sprintf("file %d of %d\n", f, d))
		}
	}
	return newWorld(b, object.SHA1, all)
}
