package integration

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/running"
)

// fails is the reason of commands that a page shows because of the error that they print.
const fails = "fails"

// changed mounts a session with a commit.
const changed = "artifactfs mount https://git.example/app.git --session fix-login --session-remote https://git.example/work.git && " +
	"git -C app rm -q docs/one.md && git -C app commit -qm 'remove a page' && artifactfs sync app"

// before has, by page, the commands that the reader has run before those of the page.
var before = map[string]string{
	"reviewing.md":        changed,
	"agents.md":           "artifactfs mount https://git.example/app.git && cd app",
	"sharing.md":          changed + " && cd app",
	"where-is-my-work.md": changed,
	"operating.md":        "artifactfs mount https://git.example/monorepo.git --session fix-login --session-remote https://git.example/work.git",
}

// documents are the pages whose blocks of sh are run, with the commands in them that cannot run here and why. A command
// is named by its beginning.
var documents = map[string]map[string]string{
	"../README.md": {
		"make demo": "builds and installs programs; it is run by hand and in CI",
		"make test": "is what runs this test",
	},
	"../doc/getting-started.md": {
		"artifactfs mount https://git.example/ap.git": fails,
	},
	"../doc/agents.md": {
		"claude ":                 "the agent is not installed here",
		"codex ":                  "the agent is not installed here",
		"gemini ":                 "the agent is not installed here",
		"artifactfs session undo": "no agent has worked here; TestUndoOfAgents has two",
		"artifactfs session redo": "no agent has worked here; TestUndoOfAgents has two",
	},
	"../doc/using-sessions.md": {
		"artifactfs ui": "runs until Ctrl-C; TestLivePageFollowsMount has it",
	},
	"../doc/reviewing.md": {
		"artifactfs session promote --pull-request": "needs a forge; TestPromotePullRequest has one",
	},
	"../doc/sharing.md":          {},
	"../doc/where-is-my-work.md": {},
	"../doc/using-server.md":     {},
	"../doc/operating.md": {
		"make install":                "TestInstall does, into a directory",
		"systemctl":                   "there is no service manager; TestUnits runs one",
		"artifactfs status --watch":   "runs until Ctrl-C",
		"artifactfs trace":            "runs until Ctrl-C",
		"artifactfs daemon --metrics": "runs until it is stopped; TestMetrics has it",
		"curl ":                       "needs that daemon",
		"artifactfs daemon --restore": "runs until it is stopped; TestRestore has it",
	},
	"../doc/containers.md": {
		"podman ": "is not installed here; TestContainers has what it needs of a mount",
	},
}

// The commands in the documents work: each block of sh of a page is run, in the order of the page, in one shell. A line
// that begins with "$ " is a command and the other lines are its output; a block without such a line has commands
// alone. https://git.example/ is a server of the test with the repositories app, web, monorepo and new, and with work,
// which is empty.
func TestDocumentsRun(t *testing.T) {
	for page, skipped := range documents {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			commands := shownCommands(string(text))
			for beginning, why := range skipped {
				if !strings.Contains(fmt.Sprint(commands), beginning) {
					t.Errorf("the page has no command that begins with %q, which cannot run because: %s", beginning, why)
				}
			}
			runCommands(t, filepath.Base(page), commands, skipped)
		})
	}
}

// shown is a command of a document.
type shown struct {
	line int
	text string
}

// shownCommands returns the commands in the blocks of sh of a page.
func shownCommands(page string) (commands []shown) {
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		if lines[i] != "```sh" {
			continue
		}
		start := i + 1
		for i++; lines[i] != "```"; i++ {
		}
		block := lines[start:i]
		prompts := strings.Contains("\n"+strings.Join(block, "\n"), "\n$ ")
		for n, line := range block {
			if command, ok := strings.CutPrefix(line, "$ "); ok || !prompts && line != "" {
				if !ok {
					command = line
				}
				commands = append(commands, shown{start + n + 1, command})
			}
		}
	}
	return commands
}

func runCommands(t *testing.T, page string, commands []shown, skipped map[string]string) {
	w := newWorld(t)
	files := map[string]gittest.File{
		"README.md": {Data: []byte("# app\n\nfoo second\n")}, "docs/one.md": {Data: []byte("one\n")},
		"docs/two.md": {Data: []byte("two\n")},
		"src/login.c": {Data: []byte("int foo;\n")}, "main.go": {Data: []byte("package main // TODO\n")},
		"services/api/main.go": {Data: []byte("package main // TODO\n\nfunc main() {}\n")},
		"Makefile":             {Data: []byte("test:\n\t@echo tested\n")},
	}
	receive := func(name string) *gittest.Repo {
		r := w.repo(name, object.SHA1)
		w.git(filepath.Join(w.repos, name), "config", "http.receivepack", "true")
		return r
	}
	for _, name := range []string{"app.git", "web.git", "monorepo.git"} {
		r := receive(name)
		w.commit(r, map[string]gittest.File{"README.md": {Data: []byte("# app\n")}})
		w.commit(r, files)
		for _, ref := range []string{"refs/heads/next", "refs/tags/v2.1"} {
			w.git(filepath.Join(w.repos, name), "update-ref", ref, "refs/heads/main")
		}
	}
	receive("work.git")
	receive("new.git")
	s := w.serve(gittest.ServerOptions{})
	url := regexp.MustCompile(`https://git\.example/(\w+)\.git`)
	home := w.place("home")
	w.check(os.MkdirAll(filepath.Join(home, "bin"), 0o755))
	w.check(os.Symlink(binary, filepath.Join(home, "bin", "artifactfs")))

	listen := freeAddress(w) // of artifactfs serve, whose default address may be in use on this host
	var script strings.Builder
	script.WriteString("trap 'echo \"$at: exit status $?\" >&2; exit 1' ERR\nset -E\n")
	ran := 0
command:
	for _, c := range append([]shown{{0, cmp.Or(before[page], ":")}}, commands...) {
		failing := false
		for beginning, why := range skipped {
			if !strings.HasPrefix(c.text, beginning) {
				continue
			}
			if why != fails {
				continue command
			}
			failing = true
		}
		text := url.ReplaceAllStringFunc(c.text,
			func(u string) string { return s.URL(url.FindStringSubmatch(u)[1] + ".git") })
		text = strings.ReplaceAll(text, "/srv/", w.root+"/srv/")
		text = strings.ReplaceAll(text, running.DefaultListen, listen)
		if failing {
			text = "if " + text + "\nthen false; fi"
		}
		fmt.Fprintf(&script, "at=%s:%d\necho '+' %s >&2\n%s\n", page, c.line, shellQuote(c.text), text)
		ran++
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = home
	cmd.Env = append(append(os.Environ(), w.env...),
		"HOME="+home, "PATH="+filepath.Join(home, "bin")+":"+os.Getenv("PATH"), "ARTIFACTFS_STATE="+w.state,
		"ARTIFACTFS_LISTEN="+listen,
		"GIT_AUTHOR_NAME=me", "GIT_AUTHOR_EMAIL=me@example.org", "GIT_COMMITTER_NAME=me",
		"GIT_COMMITTER_EMAIL=me@example.org", "PAGER=cat")
	out, err := cmd.CombinedOutput()
	t.Logf("%d of %d commands of %s:\n%s", ran, len(commands), page, out)
	if err != nil {
		t.Errorf("a command of %s failed: %v", page, err)
	}
	if len(commands) == 0 {
		t.Errorf("%s shows no commands in blocks of sh", page)
	}
	w.afs("unmount", "--all")
	w.afs("serve", "--stop") // fails if the page has started no server
}

// shellQuote returns text as one word of a shell.
func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
