package promisor

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// Hint names the git commands that wait for an object, the nearest ancestor first.
type Hint struct {
	Commands []Command
}

// Command is a running git command. A field is empty if its value could not be read.
type Command struct {
	Process string // identifies the process, even if the process ID is used again later
	// Args is the command line, beginning with the program.
	Args   []string
	Dir    string // working directory, which for most commands is the top of the working tree
	Prefix string // directory below Dir in which the command was started: "", or with a slash at its end
	GitDir string // GIT_DIR in the command's environment; usually ""
	Index  string // GIT_INDEX_FILE, which git sets for its children
}

// Limits of a hint. maxAncestors is the maximum number of processes that are inspected, and maxCommands the maximum number of git
// commands in the hint.
const (
	maxAncestors = 32
	maxCommands  = 6
)

// ancestors returns the git commands among the process pid and its ancestors.
func ancestors(pid int) Hint {
	var h Hint
	// child is the process that was inspected before p. It is the child of p.
	var child process
	for range maxAncestors {
		p, err := readProcess(pid)
		if err != nil || pid <= 1 {
			break
		}
		if p.isGit() && len(h.Commands) < maxCommands {
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
	// If the process belongs to another user, its arguments and the other properties cannot be read, and the hint is incomplete.
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
