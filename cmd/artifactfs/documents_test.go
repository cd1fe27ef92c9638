package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
)

// foreignFlags are flags of other programs that the documents name without the program.
var foreignFlags = []string{
	"--depth", "--filter", "--no-alternates", "--ff-only", "--show-origin", "--strict", "--recursive", "--fsck-objects",
	"--read-tree",
	"--stdin", "--restart", "--skip", "--glob",
	"--rm", "--device", "--cap-add", "--security-opt", "--network", "--from", "--bare", "--no-tags", "--untracked-cache",
	"--fsmonitor",
	"--shared", "--init", "--global", "--raw", "--git-common-dir", "--object-format", "--config", "--fail", "--silent",
	"--show-error",
	"--missing", "--objects", "--not", "--no-checkout", "--sparse", "--no-lazy-fetch", "--batch-check", "--end-of-options",
	"--topo-order",
	"--graph", "--hard", "--mixed", "--soft", "--user", "--now", "--root", "--write-tree", "--notes", "--atomic",
	"--geometric", "--force", "--deepen", "--unshallow", "--shallow-since", "--unix-socket", "--privileged",
}

// span is code in a document: a line of a block, or what stands between backquotes.
type span struct {
	line int
	text string
	code bool // a line of a block
}

// spans returns the code in a Markdown page. A line that continues with a backslash is one with the next.
func spans(page string) (all []span) {
	fenced, joined := false, ""
	for i, line := range strings.Split(page, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced || strings.HasPrefix(line, "    ") && !strings.HasPrefix(strings.TrimSpace(line), "- "):
			if head, ok := strings.CutSuffix(line, `\`); ok {
				joined += head
				continue
			}
			all = append(all, span{i + 1, strings.TrimSpace(joined + line), true})
			joined = ""
		default:
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(line, -1) {
				all = append(all, span{i + 1, m[1], false})
			}
		}
	}
	return all
}

// pages returns the paths of the documents: of the root, and of each folder in doc and contrib.
func pages(t *testing.T) []string {
	t.Helper()
	all := []string{"../../README.md", "../../CONTRIBUTING.md"}
	for _, folder := range []string{"../../doc", "../../contrib"} {
		err := filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".md") {
				all = append(all, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 40 {
		t.Fatalf("found %d documents, want at least 40", len(all))
	}
	return all
}

// Each command and each flag of artifactfs that a document shows exists. A document shows a command where a line of a
// block or code in the text has "artifactfs" in it, or code in the text begins with the name of a command that has
// commands below it.
func TestDocumentsShowCommandsThatExist(t *testing.T) {
	root := rootCommand(&cli.App{Stdout: os.Stdout, Stderr: os.Stderr})
	flags := make(map[string]bool)
	var collect func(c *cobra.Command)
	collect = func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
		}
		for _, sub := range c.Commands() {
			collect(sub)
		}
	}
	collect(root)
	for line, want := range map[string]string{
		"mount URL --no-such-flag":    "there is no flag --no-such-flag of artifactfs mount",
		"session frobnicate":          "there is no command frobnicate of artifactfs session",
		"run URL -- make --jobs=2":    "",
		"status --watch=5 --json DIR": "",
	} {
		if got := wrong(root, strings.Fields(line)); got != want {
			t.Errorf("artifactfs %s: got %q, want %q", line, got, want)
		}
	}
	shown := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range spans(string(text)) {
			words := strings.FieldsFunc(s.text, func(r rune) bool { return strings.ContainsRune(" \t()|;&\"'<>", r) })
			if !s.code && len(words) > 1 && words[0] == "session" && words[1] != "remote" {
				words = append([]string{"artifactfs"}, words...)
			}
			for i, word := range words {
				if strings.Contains(s.text, word+"  ") || i+1 < len(words) && words[i+1] == "artifactfs" {
					continue // a list of files, or the name under which another program knows the command
				}
				if word == "artifactfs" || strings.HasSuffix(word, "/artifactfs/helper") {
					shown++
					if bad := wrong(root, words[i+1:]); bad != "" {
						t.Errorf("%s:%d: command %s is wrong: %s", page, s.line, s.text, bad)
					}
					break
				}
			}
			if name, _, _ := strings.Cut(words0(words), "="); !s.code && strings.HasPrefix(name, "--") && len(name) > 2 &&
				!flags[name] && !slices.Contains(foreignFlags, name) {
				t.Errorf("%s:%d: no command has the flag %s", page, s.line, name)
			}
		}
	}
	if shown < 100 {
		t.Errorf("found %d commands in the documents, want over a hundred", shown)
	}
}

// words0 returns the first word, without the brackets of an optional value.
func words0(words []string) string {
	if len(words) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(words[0], "[")
	return strings.TrimRight(name, ".,]")
}

// wrong returns what does not exist of the words behind "artifactfs"; "": all does. It ends at "--", at a comment, and
// at the end of the command.
func wrong(root *cobra.Command, words []string) string {
	cmd := root
	for i, word := range words {
		word = strings.Trim(word, "[],.:")
		switch {
		case word == "--" || strings.HasPrefix(word, "#") || word == "...":
			return ""
		case cmd.DisableFlagParsing: // the flags are those of another program
			return ""
		case strings.HasPrefix(word, "--"):
			name, _, _ := strings.Cut(word[2:], "=")
			name, _, _ = strings.Cut(name, "[")
			if name == "help" || name == "version" || cmd.Flags().Lookup(name) != nil ||
				root.PersistentFlags().Lookup(name) != nil ||
				cmd.InheritedFlags().Lookup(name) != nil {
				continue
			}
			return "there is no flag --" + name + " of " + cmd.CommandPath()
		case strings.HasPrefix(word, "-") || word == "":
		case cmd.HasSubCommands():
			if word != strings.ToLower(word) && i == 0 { // COMMAND, or prose
				return ""
			}
			next, _, err := cmd.Find([]string{word})
			if err != nil || next == cmd {
				if cmd == root && !regexp.MustCompile(`^[a-z]+$`).MatchString(word) {
					return ""
				}
				if word == strings.ToUpper(word) {
					return ""
				}
				return "there is no command " + word + " of " + cmd.CommandPath()
			}
			cmd = next
		}
	}
	return ""
}
