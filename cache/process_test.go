package cache

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// childEnv makes the test binary a second process that shares a cache: its value is "job dir quota first".
const childEnv = "CACHE_TEST_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		if err := child(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(spec string) error {
	var job, dir string
	var quota int64
	var first uint64
	if _, err := fmt.Sscan(spec, &job, &dir, &quota, &first); err != nil {
		return err
	}
	b, err := OpenBlobs(dir, quota)
	if err != nil {
		return err
	}
	defer b.Close()
	if job == "obey" {
		return childObey(b)
	}
	rng := rand.New(rand.NewPCG(first, 3))
	for n := first; ; n++ { // "churn", until killed
		id, data := numbered(n, sizeOf(n))
		if err := b.Put(id, data); err != nil {
			return err
		}
		if err := childCheck(b, first+rng.Uint64N(n-first+1)); err != nil {
			return err
		}
		fmt.Print(".") // reports the progress to the parent
	}
}

// childObey executes the commands on its stdin: it answers "ok" to "put n", and "yes" or "no" to "get n".
func childObey(b *Blobs) error {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		word, arg, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(arg, 10, 64)
		if err != nil {
			return err
		}
		id, data := numbered(n, sizeOf(n))
		answer := "ok"
		if word == "put" {
			err = b.Put(id, data)
		} else {
			answer = "no"
			if _, ok := b.Get(id); ok {
				answer = "yes"
			}
			err = childCheck(b, n)
		}
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

func childCheck(b *Blobs, n uint64) error {
	id, want := numbered(n, sizeOf(n))
	c, ok := b.Get(id)
	if !ok {
		return nil
	}
	defer c.Release()
	got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	if err != nil || string(got) != string(want) {
		return fmt.Errorf("content %d is wrong: %d bytes, want %d, %v", n, len(got), len(want), err)
	}
	return nil
}

func startChild(t *testing.T, job, dir string, quota int64, first uint64) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %d", childEnv, job, dir, quota, first))
	cmd.Stderr = os.Stderr
	return cmd
}

// obedient is a second process that executes commands of the test.
type obedient struct {
	t       *testing.T
	in      io.WriteCloser
	answers *bufio.Scanner
	cmd     *exec.Cmd
}

func startObedient(t *testing.T, dir string) *obedient {
	t.Helper()
	o := &obedient{t: t, cmd: startChild(t, "obey", dir, plenty, 0)}
	var err error
	if o.in, err = o.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.answers = bufio.NewScanner(out)
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *obedient) do(word string, n uint64) string {
	o.t.Helper()
	fmt.Fprintf(o.in, "%s %d\n", word, n)
	if !o.answers.Scan() {
		o.t.Fatalf("the other process ended during %s %d: %v", word, n, o.cmd.Wait())
	}
	return o.answers.Text()
}

func (o *obedient) end() {
	o.t.Helper()
	o.in.Close()
	if err := o.cmd.Wait(); err != nil {
		o.t.Fatalf("the other process: %v", err)
	}
}

func segmentFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "seg", "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestTwoProcessesShareADirectory(t *testing.T) {
	dir := t.TempDir()
	b := openBlobs(t, dir, plenty)
	put(t, b, 5000, sizeOf(5000))
	o := startObedient(t, dir)
	for n := range uint64(300) {
		if got := o.do("put", n); got != "ok" {
			t.Fatal(got)
		}
		await.Until(t, "this process finds the contents of the other one", func() bool { return check(t, b, n, sizeOf(n)) })
		put(t, b, 1000+n, sizeOf(1000+n))
		await.Until(t, "the other process finds the contents of this one",
			func() bool { return o.do("get", 1000+n) == "yes" })
	}
	o.do("put", 2000+61) // each process has its own segment
	if got := segmentFiles(t, dir); len(got) != 2 {
		t.Fatalf("segments of two processes: got %d, %v", len(got), got)
	}
	if _, err := b.Collect(0); err != nil {
		t.Fatal(err)
	}
	if got := o.do("get", 7); got != "yes" {
		t.Error("the segment that the other process appends to was evicted")
	}
	if got := o.do("get", 1000); got != "no" {
		await.Until(t, "the other process notices the eviction", func() bool { return o.do("get", 1000) == "no" })
	}
	o.end()
	put(t, b, 3000, 100) // appends to the segment that the other process left
	if got := segmentFiles(t, dir); len(got) != 1 {
		t.Errorf("got %d segments, want the other's to be reused: %v", len(got), got)
	}
	mustHave(t, b, 7, sizeOf(7))
	if _, err := b.Collect(0); err != nil {
		t.Fatal(err)
	}
	if u := b.Usage(); u.Bytes != 0 || u.Blobs != 0 || len(segmentFiles(t, dir)) != 0 {
		t.Errorf("usage after Collect of everything: got %+v, segments %v", u, segmentFiles(t, dir))
	}
}

// TestKilledWritersLeaveNothingWrong kills processes that store and evict at random moments, and checks all contents.
func TestKilledWritersLeaveNothingWrong(t *testing.T) {
	rounds := 15
	if testing.Short() {
		rounds = 4
	}
	rng := rand.New(rand.NewPCG(4, 4))
	for _, quota := range []int64{plenty, 24 << 20} {
		dir := t.TempDir()
		watcher := openBlobs(t, dir, quota) // is open during the whole test
		const apart = 100_000
		found := 0
		for round := range rounds {
			first := uint64(round) * apart
			a, z := startChild(t, "churn", dir, quota, first), startChild(t, "churn", dir, quota, first+apart/2)
			progress, err := a.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			for _, cmd := range []*exec.Cmd{a, z} {
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.CopyN(io.Discard, progress, 1+rng.Int64N(600)); err != nil {
				t.Fatal(err)
			}
			for _, cmd := range []*exec.Cmd{a, z} {
				cmd.Process.Kill()
				if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
					t.Fatalf("a writer ended before it was killed: %v", err)
				}
			}
			fresh := openBlobs(t, dir, quota)
			for n := range uint64(800) {
				for _, b := range []*Blobs{fresh, watcher} {
					for _, m := range []uint64{first + n, first + apart/2 + n} {
						if check(t, b, m, sizeOf(m)) {
							found++
						}
					}
				}
			}
			if d := fresh.Usage().Damaged; d != 0 {
				t.Errorf("round %d: got %d damaged contents, although only processes were killed", round, d)
			}
			fresh.Close()
		}
		if found < rounds*100 {
			t.Errorf("found only %d contents in %d rounds", found, rounds)
		}
		if n := len(segmentFiles(t, dir)); quota == plenty && n > 4 {
			t.Errorf("got %d segments after %d rounds: segments were not reused", n, rounds)
		}
	}
}
