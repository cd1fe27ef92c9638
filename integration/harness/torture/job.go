package torture

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	jobVar  = "ARTIFACTFS_TORTURE_JOB" // environment variable with the name of the job that a process runs
	loadDir = "load"                   // directory below Options.Mount that contains the directories of the jobs
	// WorkDir is the only directory of the repository whose files jobs change.
	WorkDir = "work"
)

// jobs contains the function of each job by kind. Each function runs until j.over returns true, and then checks
// everything once more.
var jobs = map[string]func(j *job) error{
	"names":   (*job).names,
	"signals": (*job).signals,
	"blocks":  (*job).blocks,
	"deleted": (*job).deleted,
	"reader":  (*job).reader,
	"listing": (*job).listing,
	"watch":   (*job).watch,
	"locks":   (*job).locks,
	"tail":    (*job).tail,
	"build":   (*job).build,
	"git":     (*job).git,
	"fio":     (*job).fio,
	"mayfly":  (*job).mayfly,
	"meter":   (*job).meter,
}

// job contains the parameters and the state of a program in the mount.
type job struct {
	kind, name     string
	mount          string // mount point of the repository
	dir            string // directory of the job in the mount
	plain, scratch string
	seed           uint64
	rnd            *rand.Rand

	done    atomic.Int64
	ended   atomic.Bool
	ready   sync.Once
	printed sync.Mutex
	out     *bufio.Writer
}

// Main must be called at the start of a program that uses this package. In the process of a job it does not return.
func Main() {
	spec := strings.Split(os.Getenv(jobVar), "\n")
	if len(spec) != 6 {
		return
	}
	os.Unsetenv(jobVar)
	seed, _ := strconv.ParseUint(spec[5], 10, 64)
	j := &job{kind: spec[0], name: spec[1], mount: spec[2], dir: filepath.Join(spec[2], loadDir, spec[1]), plain: spec[3],
		scratch: filepath.Join(spec[4], spec[1]), seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)),
		out: bufio.NewWriter(os.Stdout)}
	// standard input is closed when the job must end, or when the process that has started the job has ended
	go func() {
		io.Copy(io.Discard, os.Stdin)
		j.ended.Store(true)
	}()
	err := errors.Join(os.MkdirAll(j.dir, 0o755), os.MkdirAll(j.scratch, 0o755))
	if err == nil {
		err = jobs[j.kind](j)
	}
	if err != nil {
		j.fault("%v", err)
	}
	j.printf("did %d", j.done.Load())
	os.Exit(0)
}

func (j *job) printf(format string, args ...any) {
	j.printed.Lock()
	defer j.printed.Unlock()
	j.out.WriteString(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", `\n`) + "\n")
	j.out.Flush()
}

// fault reports a result that is not the expected one.
func (j *job) fault(format string, args ...any) {
	j.printf("error at %d ms: "+format, append([]any{Now().Milliseconds()}, args...)...)
}

// over reports whether the job must end. n is the number of operations since the last call of over.
func (j *job) over(n int) bool {
	j.done.Add(int64(n))
	j.ready.Do(func() { j.printf("ready") })
	return j.ended.Load()
}

// pace sleeps for a random time, so that other jobs can run. The load should consist of many programs, and not of one
// busy program.
func (j *job) pace(longest time.Duration) {
	time.Sleep(time.Duration(j.rnd.Int64N(int64(longest))))
}

// again calls f, and repeats this as long as a signal interrupts the call before it has an effect.
func again(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// blockSize is the size of a block in bytes. The contents of a block depend on the file, on the number of the block,
// and on the sequence number of the write.
const blockSize = 4096

// fill writes the expected contents of a block to b. The sequence number 0 means a hole.
func fill(b []byte, file uint64, block, sequence uint64) {
	if sequence == 0 {
		clear(b)
		return
	}
	rnd := rand.NewPCG(file<<32|block, sequence)
	binary.LittleEndian.PutUint64(b, block)
	binary.LittleEndian.PutUint64(b[8:], sequence)
	for i := 16; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rnd.Uint64())
	}
}

// differs returns a description of the difference between the contents of a block and the expected contents, or "" if
// there is none.
func differs(got []byte, file uint64, block, sequence uint64) string {
	want := make([]byte, blockSize)
	fill(want, file, block, sequence)
	if bytes.Equal(got, want) {
		return ""
	}
	if len(got) < 16 {
		return fmt.Sprintf("block %d has %d bytes", block, len(got))
	}
	first := 0
	for first < len(got) && got[first] == want[first] {
		first++
	}
	return fmt.Sprintf("block %d differs from byte %d on: it says block %d written as %d, want %d", block, first,
		binary.LittleEndian.Uint64(got), binary.LittleEndian.Uint64(got[8:]), sequence)
}
