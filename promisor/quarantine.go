package promisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
)

const (
	// quarantineName is the name of the quarantine directory in the git directory.
	quarantineName = "artifactfs-lens"
	// gitDelay is the time for which Wait waits, after git has exited, for other processes that have git's output open.
	gitDelay = time.Second
)

// quarantineDir is a bare git directory that contains the refs and objects of a mount's git directory, and none of its
// configuration that could start programs. It has no promisor remote, so a git command that runs in it does not request missing
// objects. git before 2.45 has no other way to prevent such requests.
type quarantineDir struct {
	gitDir  string   // git directory of the mount
	objects []string // alternates of the mount's git directory
	dir     string   // path of the quarantine directory, in gitDir
	config  string   // configuration of the quarantine directory, without the branches that update adds

	mu         sync.Mutex
	made       bool      // true if this process has created the directory; an older directory may be from another version of this program
	configured time.Time // mtime of the mount's configuration when update read it
}

// shown lists the files and directories of a git directory to which the quarantine directory refers by symbolic links, see
// gitrepository-layout(5). HEAD is copied, because git accepts a symbolic link as HEAD only if the link points into refs.
var shown = []string{"refs", "logs", "packed-refs", "shallow", "index", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD",
	"REVERT_HEAD", "REBASE_HEAD", "BISECT_HEAD", "AUTO_MERGE"}

// newQuarantineDir returns the quarantine directory of a git directory. The first update creates it on disk, because most mounts
// never need the directory.
func newQuarantineDir(gitDir string, objects []string, f object.Format) *quarantineDir {
	l := &quarantineDir{gitDir: gitDir, objects: objects, dir: filepath.Join(gitDir, quarantineName)}
	l.config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n"
	if f != object.SHA1 { // the key is left out for SHA-1, because git versions without SHA-256 do not know it
		l.config += "[extensions]\n\tobjectFormat = " + f.String() + "\n"
	}
	return l
}

// make creates the quarantine directory, and replaces an existing one. The caller holds mu.
func (l *quarantineDir) make() error {
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("create quarantine directory: %w", err)
	}
	err := os.Mkdir(l.dir, 0o755)
	if err == nil {
		err = errors.Join(
			LinkObjects(filepath.Join(l.dir, "objects"), filepath.Join(l.gitDir, "objects"), l.objects),
			os.WriteFile(filepath.Join(l.dir, "config"), []byte(l.config), 0o644),
			os.WriteFile(filepath.Join(l.dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644))
	}
	for _, name := range shown {
		err = errors.Join(err, os.Symlink(filepath.Join(l.gitDir, name), filepath.Join(l.dir, name)))
	}
	if err != nil {
		return fmt.Errorf("create quarantine directory: %w", err)
	}
	l.made = true
	return nil
}

// LinkedObjects is the name of an object directory in a git directory, which package gitdir creates by LinkObjects.
const LinkedObjects = "artifactfs-objects"

// OwnObjects returns the path of an object directory that contains the objects of a git directory and of its alternates on disk, but not
// those that the mount shows.
func OwnObjects(gitDir string) string {
	path := filepath.Join(gitDir, LinkedObjects)
	if _, err := os.Lstat(path); err != nil {
		return filepath.Join(gitDir, "objects") // no version with such a directory has opened this git directory, so its mount shows none
	}
	return path
}

// LinkObjects creates an object directory at path that contains the objects of the directory own and of those in borrowed. It does not
// contain those of the alternates of own, in which a mount may show objects: the process that serves the mount must not wait for itself,
// and a git command that lists missing objects must not find them there. The directory is only for reading.
func LinkObjects(path, own string, borrowed []string) error {
	err := errors.Join(os.MkdirAll(filepath.Join(path, "info"), 0o755),
		os.WriteFile(filepath.Join(path, "info", "alternates"), []byte(strings.Join(borrowed, "\n")+"\n"), 0o644),
		link(filepath.Join(own, "pack"), filepath.Join(path, "pack")))
	for b := range 256 {
		name := fmt.Sprintf("%02x", b)
		err = errors.Join(err, link(filepath.Join(own, name), filepath.Join(path, name)))
	}
	return err
}

// link creates a symbolic link, unless it exists.
func link(target, path string) error {
	if err := os.Symlink(target, path); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// update copies the current HEAD into the quarantine directory. If the mount's configuration has changed, update also copies the
// settings on which names such as @{upstream} depend. The first call creates the quarantine directory.
func (l *quarantineDir) update(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.made {
		if err := l.make(); err != nil {
			return err
		}
	}
	head, err := os.ReadFile(filepath.Join(l.gitDir, "HEAD"))
	if err == nil {
		err = l.replace("HEAD", head)
	}
	info, statErr := os.Stat(filepath.Join(l.gitDir, "config"))
	if err = errors.Join(err, statErr); err != nil {
		return fmt.Errorf("read HEAD: %w", err)
	}
	if info.ModTime().Equal(l.configured) {
		return nil
	}
	names, err := l.names(ctx)
	if err == nil {
		err = l.replace("config", append([]byte(l.config), names...))
	}
	if err != nil {
		return fmt.Errorf("read git configuration: %w", err)
	}
	l.configured = info.ModTime()
	return nil
}

// replace replaces a file of the quarantine directory atomically, because git may be reading it.
func (l *quarantineDir) replace(name string, content []byte) error {
	return disk.WriteFileUnsynced(filepath.Join(l.dir, name), content, 0o644)
}

// names returns the user's configuration of branches and their upstreams, as the text of a configuration file.
func (l *quarantineDir) names(ctx context.Context) ([]byte, error) {
	out, err := l.output(ctx, "config", "-z", "--file", filepath.Join(l.gitDir, "config"), "--get-regexp",
		`^(branch|remote)\..*\.(remote|merge|fetch)$`)
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == 1 { // git exits with 1 if no key matches
		return nil, nil
	}
	var text []byte
	for entry := range strings.SplitSeq(out, "\x00") {
		key, value, ok := strings.Cut(entry, "\n")
		section, rest, ok2 := strings.Cut(key, ".")
		at := strings.LastIndexByte(rest, '.')
		if ok && ok2 && at > 0 && !strings.ContainsAny(entry[len(key)+1:], "\n") {
			text = fmt.Appendf(text, "[%s \"%s\"]\n\t%s = \"%s\"\n", section, quoteConfig.Replace(rest[:at]),
				rest[at+1:], quoteConfig.Replace(value))
		}
	}
	return text, err
}

// quoteConfig escapes a value for a configuration file.
var quoteConfig = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// command returns a git command that runs in the quarantine directory. Data that other programs have written cannot make
// this command start a program, request a missing object, write, or wait for input.
func (l *quarantineDir) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := gitcmd.New(ctx, args...)
	cmd.Dir = l.dir // the directory must not be the working tree, because this process serves the mount
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", gitcmd.PlainText, "GIT_DIR=" + l.dir,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", gitcmd.NoFetch, gitcmd.NoPrompt, gitcmd.NoLocks, "GIT_ATTR_NOSYSTEM=1",
	}
	// The command gets its own process group, so that its child processes are killed together with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = gitDelay
	return cmd
}

// output returns the first 16 MiB of the output of a git command.
func (l *quarantineDir) output(ctx context.Context, args ...string) (string, error) {
	var out strings.Builder
	err := l.stream(ctx, "", args, func(r *bufio.Reader) error {
		_, err := io.Copy(&out, io.LimitReader(r, 16<<20))
		return err
	})
	return out.String(), err
}

// errEnough is returned by a function that reads a listing, to end the listing early. It does not report a failure.
var errEnough = errors.New("listing ended early")

// stream runs a git command with the input in, and calls the function read with the output. read may end the command early by
// returning errEnough. If the command fails, the output before the failure is used, because a command that needs a missing object
// has printed all preceding output.
func (l *quarantineDir) stream(ctx context.Context, in string, args []string, read func(r *bufio.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := l.command(ctx, args...)
	if in != "" {
		cmd.Stdin = strings.NewReader(in)
	}
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("run git %s: %w", args[0], err)
	}
	err = read(bufio.NewReaderSize(pipe, 64<<10))
	if err != nil {
		cancel()
	}
	waitErr := cmd.Wait()
	switch {
	case errors.Is(err, errEnough):
		return errEnough
	case err != nil:
		return fmt.Errorf("run git %s: %w", args[0], err)
	case waitErr != nil:
		return fmt.Errorf("run git %s: %w", args[0], waitErr)
	}
	return nil
}

// rev returns the id to which name refers, or "" if name refers to no object.
func (l *quarantineDir) rev(ctx context.Context, name string) string {
	if name == "" || strings.HasPrefix(name, "-") {
		return ""
	}
	out, err := l.output(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// userConfig returns the value of key from the user's configuration. It starts git and no other program.
func (l *quarantineDir) userConfig(ctx context.Context, key string) (string, error) {
	cmd := l.command(ctx, "config", "--get", key)
	cmd.Env = append(gitcmd.Environ(nil), "GIT_DIR="+l.gitDir, gitcmd.PlainText)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}
