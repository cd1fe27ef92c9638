package torture

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// child is a process that runs the same job in another role.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   bytes.Buffer
}

// fork starts the program of this job in another process, with a further environment variable. The working directory of
// the process is outside of the mount at first.
func (j *job) fork(env string) (*child, error) {
	c := &child{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Args[0] = "torture-" + j.name
	c.cmd.Env = append(os.Environ(), env, jobVar+"="+
		strings.Join([]string{j.kind, j.name, j.mount, j.plain, filepath.Dir(j.scratch), fmt.Sprint(j.seed + 100)}, "\n"))
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Dir = &c.out, &c.out, "/"
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// end waits until a child has ended, and returns its output without the lines that every job prints.
func (c *child) end() (string, error) {
	c.stdin.Close()
	err := c.cmd.Wait()
	var said []string
	for line := range strings.Lines(c.out.String()) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "error ") && err == nil {
			err = fmt.Errorf("%s", strings.TrimPrefix(line, "error "))
		}
		if line != "ready" && !strings.HasPrefix(line, "did ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, "\n"), err
}

// tool runs a program to its end and returns its output.
func (j *job) tool(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s in %s: %w: %s%s", name, strings.Join(args, " "), dir, err, out, &stderr)
	}
	return string(out), err
}

// tail runs tail -f on a file to which lines are appended through another open file description. tail must print each
// line once and in order.
func (j *job) tail() error {
	path := filepath.Join(j.dir, "log")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	tail := exec.Command("tail", "-n", "+1", "-f", path)
	tail.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	tail.Stderr = os.Stdout // error output of tail is reported as an error of this job
	out, err := tail.StdoutPipe()
	if err != nil {
		return err
	}
	if err := tail.Start(); err != nil {
		return err
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	line := func(i int) string { return fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%97)) }
	written, seen := 0, 0
	var deadline time.Time // set after the last line was written
	for deadline.IsZero() || seen < written {
		if deadline.IsZero() {
			if _, err := fmt.Fprintln(f, line(written)); err != nil {
				return err
			}
			if written++; j.over(1) {
				deadline = time.Now().Add(longWait)
			}
		} else if time.Now().After(deadline) {
			return fmt.Errorf("follow file: tail printed %d of %d lines", seen, written)
		}
		for wait := time.After(time.Duration(j.rnd.IntN(10)) * time.Millisecond); ; {
			select {
			case got, ok := <-lines:
				if !ok || got != line(seen) {
					return fmt.Errorf("follow file: tail printed %q, want %q", got, line(seen))
				}
				seen++
				continue
			case <-wait:
			}
			break
		}
	}
	if err := tail.Process.Kill(); err != nil {
		return err
	}
	if extra, ok := <-lines; ok {
		return fmt.Errorf("follow file: tail printed %q after the last line", extra)
	}
	tail.Wait() // returns an error, because the process was killed
	return f.Close()
}

// build repeatedly changes a Go program with a few packages, builds it, and runs it.
func (j *job) build() error {
	packages := []string{"a", "b", "c"}
	write := func(round int) error {
		for _, p := range packages {
			source := fmt.Sprintf("package %s\n\nconst Round = %d\n\nfunc Say() string { return %q }\n", p, round,
				strings.Repeat(p, 300+round%7))
			if err := os.WriteFile(filepath.Join(j.dir, p, p+".go"), []byte(source), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	main :=
		"package main\n\nimport (\n\t\"example.invalid/m/a\"\n\t\"example.invalid/m/b\"\n\t\"example.invalid/m/c\"\n)\n\n" +
			"func main() { println(a.Round+b.Round+c.Round, len(a.Say()+b.Say()+c.Say())) }\n"
	for _, p := range packages {
		if err := os.Mkdir(filepath.Join(j.dir, p), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"go.mod": "module example.invalid/m\n\ngo 1.21\n", "main.go": main} {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	// The build cache is outside of the mount and shared by all runs, so that the Go runtime is not compiled for every
	// mount. buildvcs is off, because go would run git status and hold the lock of the index while the job git needs
	// it.
	env := []string{"GOFLAGS=-mod=mod -p=1 -buildvcs=false", "GOWORK=off", "GOTOOLCHAIN=local", "GO111MODULE=on",
		"GOPROXY=off"}
	for round := 1; !j.over(1); round++ {
		if err := write(round); err != nil {
			return err
		}
		if _, err := j.tool(j.dir, env, "go", "build", "-o", "prog", "."); err != nil {
			return err
		}
		cmd := exec.Command(filepath.Join(j.dir, "prog"))
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if want := fmt.Sprintf("%d %d\n", 3*round, 3*(300+round%7)); err != nil || string(out) != want {
			return fmt.Errorf("run built program: got %q (%v), want %q", out, err, want)
		}
		j.pace(300 * time.Millisecond)
	}
	return nil
}

// git runs the same git commands in the mount and in a clone of the checkout, and compares their outputs.
func (j *job) git() error {
	clone := filepath.Join(j.scratch, "clone")
	if _, err := j.tool("/", nil, "git", "clone", "-q", "--no-hardlinks", j.plain, clone); err != nil {
		return err
	}
	var err error
	for round := 1; !j.over(1); round++ {
		if err = j.gitRound(clone, round); err != nil {
			return err
		}
	}
	return nil
}

// gitSteps are the shell commands of one round of the job git. ROUND is replaced by the number of the round.
var gitSteps = []string{
	"git status --porcelain --untracked-files=normal",
	"echo $ROUND > work/changed && echo new $ROUND > work/new$ROUND && rm -f work/new$((ROUND - 3))",
	"git status --porcelain",
	"git diff",
	"git add -A work",
	"git commit -q -m \"round $ROUND\"",
	"git rev-parse HEAD",
	"git log -p -2",
	"git checkout -q -b branch$ROUND HEAD~1",
	"cat work/*",
	"git status --porcelain",
	"git checkout -q main",
	"git diff --stat branch$ROUND",
	"git branch -q -D branch$ROUND",
	"git stash list; echo again > work/changed; git stash -q; git stash pop -q; git checkout -q -- work; git status --porcelain",
	"git ls-files -s work | sha1sum",
}

func (j *job) gitRound(clone string, round int) error {
	env := []string{fmt.Sprintf("ROUND=%d", round), "LC_ALL=C", "GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=safe.directory",
		"GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=gc.auto", "GIT_CONFIG_VALUE_1=0",
		// By default, git derives the length of abbreviated IDs from the number of objects in packs. In a mount, blobs
		// are not in packs, so the lengths would differ.
		"GIT_CONFIG_KEY_2=core.abbrev", "GIT_CONFIG_VALUE_2=12"}
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		env = append(env, "GIT_"+who+"_NAME=torture", "GIT_"+who+"_EMAIL=torture@localhost",
			fmt.Sprintf("GIT_%s_DATE=%d +0000", who, 1_700_000_000+round))
	}
	for _, step := range gitSteps {
		// A failure of any command is an error. The shell changes the directory, because this process must not wait for
		// the mount.
		line := "cd \"$AT\" && set -e && " + step
		want, err := j.tool("/", append(env, "AT="+clone), "sh", "-c", line)
		if err != nil {
			return fmt.Errorf("run step in the clone: %w", err)
		}
		got, err := j.tool("/", append(env, "AT="+j.mount), "sh", "-c", line)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("compare round %d: %q printed %q, in the clone %q", round, step, got, want)
		}
		j.over(1)
	}
	return nil
}

// fio runs the program fio, which verifies the data that it has written, with and without mappings. If fio is not
// installed, the job does the same as the job blocks.
func (j *job) fio() error {
	program, err := exec.LookPath("fio")
	if err != nil {
		return j.blocks()
	}
	for i := 0; !j.over(1); i++ {
		engine := []string{"psync", "mmap"}[i%2]
		_, err := j.tool("/", nil, program, "--output-format=terse", "--name=verify", "--directory="+j.dir,
			"--ioengine="+engine, "--rw=randrw", "--rwmixread=50",
			"--bs=4k-32k", "--size=4m", "--nrfiles=2", "--thread", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64",
			"--verify_state_save=0",
			"--invalidate=1", "--end_fsync=1", "--rate_iops=400", fmt.Sprintf("--randseed=%d", j.seed+uint64(i)))
		if err != nil {
			return err
		}
		if i%4 == 3 {
			if err := os.RemoveAll(j.dir); err != nil {
				return err
			}
			if err := os.Mkdir(j.dir, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayfly repeatedly starts programs in the mount and kills them while they run.
func (j *job) mayfly() error {
	const life = `cd "$AT" && while :; do mkdir -p "$DIR/x/y"; echo text > "$DIR/x/f"; cat * >/dev/null 2>&1; mv "$DIR/x" "$DIR/z"; rm -r "$DIR/z"; done`
	for i := 0; !j.over(1); i++ {
		cmd := exec.Command("sh", "-c", life)
		cmd.Dir, cmd.Env = "/", append(os.Environ(), "AT="+j.mount, fmt.Sprintf("DIR=%s/%d", j.dir, i))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return err
		}
		j.pace(200 * time.Millisecond)
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill: %w", err)
		}
		cmd.Wait()
	}
	return os.RemoveAll(j.dir)
}
