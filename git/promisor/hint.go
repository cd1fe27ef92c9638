package promisor

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Hint names the git commands that wait for requested objects, the nearest ancestor first. A Hint is sent by another
// process, so its contents are not trusted.
type Hint struct {
	Commands []Command `json:"commands"`
}

// Command is a running git command. A field is empty if its value could not be read.
type Command struct {
	Process string `json:"process"` // identifies the process, even if the process ID is used again later
	// Args is the command line, beginning with the program.
	Args   []string `json:"args"`
	Dir    string   `json:"dir"`    // working directory, which for most commands is the top of the working tree
	Prefix string   `json:"prefix"` // directory below Dir in which the command was started: "", or with a slash at its end
	GitDir string   `json:"gitdir"` // GIT_DIR in the command's environment; usually ""
	Index  string   `json:"index"`  // GIT_INDEX_FILE, which git sets for its children
}

// Limits of a hint. maxHint is its maximum size in bytes, maxAncestors the maximum number of processes that are
// inspected, and maxCommands the maximum number of git commands in the hint.
const (
	maxHint      = 4 << 20 // maximum size in bytes
	maxAncestors = 32
	maxCommands  = 6
)

// ancestors returns the git commands among the process pid and its ancestors. It leaves out the `git fetch` with which
// git requests objects from a promisor remote.
func ancestors(pid int) Hint {
	var h Hint
	// child is the process that was inspected before p. It is the child of p.
	var child process
	for range maxAncestors {
		p, err := readProcess(pid)
		if err != nil || pid <= 1 {
			break
		}
		if p.isGit() && !p.isOurFetch() && len(h.Commands) < maxCommands {
			c := Command{Process: fmt.Sprintf("%d-%s", pid, p.start), Args: p.args, Dir: p.dir}
			// The variables that git sets for its children are more reliable than git's own arguments.
			c.Prefix, c.GitDir, c.Index = child.env["GIT_PREFIX"], p.env["GIT_DIR"], child.env["GIT_INDEX_FILE"]
			h.Commands = append(h.Commands, c)
		}
		child, pid = p, p.parent
	}
	return h
}

// process describes a process, as read from /proc, see proc(5).
type process struct {
	parent int
	start  string // start time in clock ticks since boot
	args   []string
	dir    string            // working directory of the process
	env    map[string]string // the variables whose names begin with GIT_
}

// readProcess reads the properties of a process from /proc. It returns an error if the process does not exist.
func readProcess(pid int) (process, error) {
	var p process
	from := proc.Of(pid)
	stat, err := from.Stat()
	if err != nil {
		return p, fmt.Errorf("read process %d: %w", pid, err)
	}
	p.parent, p.start = stat.Parent, strconv.FormatUint(stat.Start, 10)
	// If the process belongs to another user, its arguments and the other properties cannot be read, and the hint is
	// incomplete.
	if p.args, _ = from.Args(); p.args == nil {
		p.args = []string{""}
	}
	p.dir, _ = from.Dir()
	environ, _ := from.Environ()
	p.env = map[string]string{}
	for _, v := range environ {
		// Other variables are left out, because they may contain secrets and predictions do not need them.
		if name, value, ok := strings.Cut(v, "="); ok && strings.HasPrefix(name, "GIT_") {
			p.env[name] = value
		}
	}
	return p, nil
}

// isGit reports whether a process is git, or a git command that was started by its own name, such as git-fetch.
func (p process) isGit() bool {
	name := filepath.Base(p.args[0])
	return name == "git" || strings.HasPrefix(name, "git-")
}

// isOurFetch reports whether the process is the command with which git requests objects from a promisor remote
// (fetch_objects in promisor-remote.c).
func (p process) isOurFetch() bool {
	name, _ := Subcommand(p.args)
	if name != "fetch" {
		return false
	}
	for _, a := range p.args {
		if a == "--stdin" {
			return true
		}
	}
	return false
}

// Subcommand returns the name of a git command and its arguments, without the options of git itself.
func Subcommand(args []string) (name string, rest []string) {
	if len(args) == 0 {
		return "", nil
	}
	if base := filepath.Base(args[0]); strings.HasPrefix(base, "git-") {
		return base[len("git-"):], args[1:]
	}
	for i := 1; i < len(args); i++ {
		// These options have a value, which is the next argument.
		switch a := args[i]; a {
		case "-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env", "--attr-source":
			i++
		default:
			if !strings.HasPrefix(a, "-") {
				return a, args[i+1:]
			}
		}
	}
	return "", nil
}

// writeHint sends the hint h before the conversation: its length in four bytes, big-endian, and then JSON. If h is too
// long, writeHint sends an empty hint.
func writeHint(w io.Writer, h Hint) error {
	text, err := json.Marshal(h)
	// With an empty hint, the requested objects are fetched, but no predicted objects.
	if err != nil || len(text) > maxHint {
		text = []byte("{}")
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// readHint reads a hint that writeHint has sent. It returns an error if the hint is longer than maxHint.
func readHint(r io.Reader) (Hint, error) {
	var h Hint
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return h, fmt.Errorf("read description of git's process: %w", err)
	}
	// The length was sent by another process, so check it before memory is allocated.
	n := binary.BigEndian.Uint32(size[:])
	if n > maxHint {
		return h, fmt.Errorf("read description of git's process: invalid length %d", n)
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(text) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return Hint{}, fmt.Errorf("read description of git's process: %w", err)
	}
	return h, nil
}
