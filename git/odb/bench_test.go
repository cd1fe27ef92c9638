package odb

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// benchRepo returns the bare repository that the environment variable BENCH_REPO names, or one made from the sources of
// the Go toolchain, with a few versions of each file.
func benchRepo(b *testing.B) string {
	if dir := os.Getenv("BENCH_REPO"); dir != "" {
		return dir
	}
	dir := newRepo(b, object.SHA1)
	root := strings.TrimSpace(string(must(exec.Command("go", "env", "GOROOT").Output())))
	var in bytes.Buffer
	for _, pkg := range []string{"net/http", "runtime", "go/types", "crypto/tls", "encoding/json", "reflect",
		"os", "fmt"} {
		names, err := filepath.Glob(filepath.Join(root, "src", pkg, "*.go"))
		if err != nil || len(names) == 0 {
			b.Skip("the sources of Go are not installed")
		}
		in.WriteString("commit refs/heads/main\ncommitter A <a@example.org> 1700000000 +0000\ndata 2\nc\n")
		for _, name := range names {
			data := must(os.ReadFile(name))
			in.WriteString("M 100644 inline " + pkg + "/" + filepath.Base(name) + "\ndata <<~end~\n")
			in.Write(data)
			in.WriteString("\n~end~\n")
		}
	}
	git(b, dir, in.Bytes(), "fast-import", "--quiet")
	return dir
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// headPack returns a pack of those objects of HEAD's tree that have one type, as a server sends it.
func headPack(b *testing.B, repo, typ string) []byte {
	var ids bytes.Buffer
	for _, line := range strings.Split(string(git(b, repo, nil, "ls-tree", "-r", "-t", "HEAD")), "\n") {
		if f := strings.Fields(line); len(f) > 2 && f[1] == typ {
			ids.WriteString(f[2] + "\n")
		}
	}
	return git(b, repo, ids.Bytes(), "pack-objects", "-q", "--stdout", "--delta-base-offset")
}

// cpuMeter reports the processor time of a benchmark, which depends less on the load of the machine than the elapsed
// time.
func cpuMeter(b *testing.B) (report func(bytes, ops int64)) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC()
	b.ReportAllocs()
	before := used()
	return func(bytes, ops int64) {
		cpu := used() - before
		if bytes > 0 {
			b.ReportMetric(float64(bytes)/1e6/cpu.Seconds(), "MB/cpu-s")
		}
		b.ReportMetric(float64(cpu.Nanoseconds())/float64(ops), "cpu-ns/object")
	}
}

func BenchmarkUnpack(b *testing.B) {
	pack := headPack(b, benchRepo(b), "blob")
	var bytesOut, objects int64
	report := cpuMeter(b)
	for b.Loop() {
		kept := map[object.ID][]byte{}
		_, err := Unpack(context.Background(), bytes.NewReader(pack), UnpackOptions{
			SpoolOver: 8 << 20, MaxObjectSize: noLimit,
			Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
				return bytes.NewReader(kept[id]), int64(len(kept[id])), func() {}, nil
			},
		}, func(o Object) error {
			kept[o.ID] = o.Data
			bytesOut += o.Size
			objects++
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	report(bytesOut, objects)
}

func BenchmarkIngest(b *testing.B) {
	pack := headPack(b, benchRepo(b), "tree")
	s := open(b, b.TempDir(), object.SHA1)
	var bytesOut, objects int64
	report := cpuMeter(b)
	for b.Loop() {
		_, err := s.Ingest(context.Background(), bytes.NewReader(pack), IngestOptions{MaxObjectSize: noLimit},
			func(_ object.ID, _ object.Type, data []byte) { bytesOut += int64(len(data)); objects++ })
		if err != nil {
			b.Fatal(err)
		}
	}
	report(bytesOut, objects)
}

// BenchmarkGet reads the trees of HEAD in the order of a walk.
func BenchmarkGet(b *testing.B) {
	repo := benchRepo(b)
	s := open(b, b.TempDir(), object.SHA1)
	ingest(b, s, headPack(b, repo, "tree"))
	var ids []object.ID
	for _, line := range strings.Split(string(git(b, repo, nil, "ls-tree", "-r", "-t", "HEAD")), "\n") {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "tree" {
			ids = append(ids, object.MustID(f[2]))
		}
	}
	for _, op := range []struct {
		name string
		do   func(object.ID) error
	}{
		{"content", func(id object.ID) error { _, _, err := s.Get(id, noLimit); return err }},
		{"size", func(id object.ID) error { _, _, err := s.Size(id); return err }},
		{"has", func(id object.ID) error { s.Has(id); return nil }},
	} {
		b.Run(op.name, func(b *testing.B) {
			report := cpuMeter(b)
			i := 0
			for ; b.Loop(); i++ {
				if err := op.do(ids[i%len(ids)]); err != nil {
					b.Fatal(err)
				}
			}
			report(0, int64(i))
		})
	}
	absent := object.MustID("00000000000000000000000000000000000000ff")
	b.Run("miss", func(b *testing.B) {
		report := cpuMeter(b)
		n := int64(0)
		for ; b.Loop(); n++ {
			if _, _, err := s.Size(absent); err == nil {
				b.Fatal("found an object that does not exist")
			}
		}
		report(0, n)
	})
}

// BenchmarkJoin joins a thousand packs of one blob each, and removes them.
func BenchmarkJoin(b *testing.B) {
	const packs = 1000
	for b.Loop() {
		b.StopTimer()
		s := open(b, b.TempDir(), object.SHA1)
		for i := range packs {
			if _, err := s.Write(b.Context(), outgoing(b, object.SHA1,
				fmt.Appendf(nil, "blob %d %s", i, strings.Repeat("x", 1000))), WriteOptions{Promisor: true}); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		res, err := s.Join(b.Context(), JoinOptions{Above: 2, Keep: 1, Crowd: packs})
		if err != nil || res.Packs != packs {
			b.Fatalf("join packs: got %+v, %v", res, err)
		}
	}
}
