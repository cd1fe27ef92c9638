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

// Hint names the git commands that wait for a question, the nearest first. It is input from outside
// and may be anything.
type Hint struct {
	Commands []Command `json:"commands"`
}

// Command is a running git command.
type Command struct {
	Process string   `json:"process"` // identifies a process, also among later ones with the same number
	Args    []string `json:"args"`
	Dir     string   `json:"dir"`    // where it runs, which is the top of the working tree for most commands
	Prefix  string   `json:"prefix"` // where it was started, below Dir: empty, or with a slash at its end
	GitDir  string   `json:"gitdir"` // as its environment names it; mostly empty
	Index   string   `json:"index"`  // the same of the index
}

// Limits of a hint and of the search for it: maxAncestors bounds how many parents are looked at,
// maxCommands how many git commands are reported.
const (
	maxHint      = 4 << 20 // bytes
	maxAncestors = 32
	maxCommands  = 6
)

// ancestors looks for git commands among the ancestors of a process. The `git fetch` that asks us
// is none of them.
func ancestors(pid int) Hint {
	var h Hint
	// child is the process that was looked at before p.
	var child process
	for range maxAncestors {
		p, err := readProcess(pid)
		if err != nil || pid <= 1 {
			break
		}
		if p.isGit() && !p.isOurFetch() && len(h.Commands) < maxCommands {
			c := Command{Process: fmt.Sprintf("%d-%s", pid, p.start), Args: p.args, Dir: p.dir}
			// The variables that git sets for its children are more exact than its own arguments.
			c.Prefix, c.GitDir, c.Index = child.env["GIT_PREFIX"], p.env["GIT_DIR"], child.env["GIT_INDEX_FILE"]
			h.Commands = append(h.Commands, c)
		}
		child, pid = p, p.parent
	}
	return h
}

// process describes a process, from /proc: proc(5).
type process struct {
	parent int
	start  string // in clock ticks since boot
	args   []string
	dir    string
	env    map[string]string
}

// readProcess reads what /proc has about a process. It fails if the process does not exist.
func readProcess(pid int) (process, error) {
	var p process
	from := proc.Of(pid)
	stat, err := from.Stat()
	if err != nil {
		return p, fmt.Errorf("read process %d: %w", pid, err)
	}
	p.parent, p.start = stat.Parent, strconv.FormatUint(stat.Start, 10)
	// The rest is unreadable if another user runs it; then the hint has less.
	if p.args, _ = from.Args(); p.args == nil {
		p.args = []string{""}
	}
	p.dir, _ = from.Dir()
	environ, _ := from.Environ()
	p.env = map[string]string{}
	for _, v := range environ {
		// The other variables may be secrets, and no prediction needs them.
		if name, value, ok := strings.Cut(v, "="); ok && strings.HasPrefix(name, "GIT_") {
			p.env[name] = value
		}
	}
	return p, nil
}

// isGit reports whether a process is git, or a command of git that was started by its own name.
func (p process) isGit() bool {
	name := filepath.Base(p.args[0])
	return name == "git" || strings.HasPrefix(name, "git-")
}

// isOurFetch knows the command by which git asks a promisor remote (promisor-remote.c,
// fetch_objects).
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

// Subcommand names a git command and returns its arguments, without git's own options.
func Subcommand(args []string) (name string, rest []string) {
	if len(args) == 0 {
		return "", nil
	}
	if base := filepath.Base(args[0]); strings.HasPrefix(base, "git-") {
		return base[len("git-"):], args[1:]
	}
	for i := 1; i < len(args); i++ {
		// The value of these options is the next argument.
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

// writeHint sends a hint ahead of the dialogue: its length in four bytes, big-endian, and JSON.
func writeHint(w io.Writer, h Hint) error {
	text, err := json.Marshal(h)
	// Without a hint the objects are fetched all the same, only without a prediction.
	if err != nil || len(text) > maxHint {
		text = []byte("{}")
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// readHint reads what writeHint sent. It fails if the hint is longer than maxHint.
func readHint(r io.Reader) (Hint, error) {
	var h Hint
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return h, fmt.Errorf("read hint: %w", err)
	}
	// The length was sent by another process, so it is checked before memory is allocated.
	n := binary.BigEndian.Uint32(size[:])
	if n > maxHint {
		return h, fmt.Errorf("read hint: %d bytes", n)
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(text) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = json.Unmarshal(text, &h)
	}
	if err != nil {
		return Hint{}, fmt.Errorf("read hint: %w", err)
	}
	return h, nil
}
