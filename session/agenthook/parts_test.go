package agenthook

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// filesIn returns the contents of all files in dir, except those in .git, but with info/exclude.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || strings.HasPrefix(name, ".git/") && !strings.HasPrefix(name, ".git/info") {
			return err
		}
		text := "directory"
		if !e.IsDir() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// repository returns a new repository with files.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestAllPartsLeaveNoTrace checks that the removal of all parts restores all files byte by byte, whether the user has
// files with other servers and comments, or none, and for all agents at once.
func TestAllPartsLeaveNoTrace(t *testing.T) {
	jsonc := "{\n  // my servers, // and \"mcpServers\": {}\n  \"mcpServers\": {\n    \"other\": {\"command\": \"x\", " +
		"\"args\": [\"//\", \"/*\"]}, // one\n  },\n  /* end */\n}\n"
	shared := []string{".mcp.json", ".codex/config.toml", ".cursor/mcp.json", "opencode.json"}
	for name, files := range map[string]map[string]string{
		"no files": {},
		"servers of the user": {
			".mcp.json":                   "{\n\t\"mcpServers\": {\"other\": {\"command\": \"x\"}}\n}",
			".claude/settings.local.json": "{\"enabledMcpjsonServers\": [\"other\", \"artifactfs\"], \"model\": \"m\"}\n",
			".codex/config.toml":          "# mine\nmodel = \"m\"\n[mcp_servers.other]\ncommand = \"x\" # one",
			".cursor/mcp.json":            jsonc, ".gemini/settings.json": jsonc,
			"opencode.json":                   strings.ReplaceAll(jsonc, "mcpServers", "mcp"),
			".opencode/skills/mine/SKILL.md":  "mine\n",
			".claude/skills/artifactfs/x.txt": "mine\n",
		},
		"other members": {
			".mcp.json": "{}", ".cursor/mcp.json": "{\"a\":1,}", "opencode.json": "{\"mcp\":{\"a\":{}}}",
			".codex/config.toml": "[a]\nb = 1\n", ".gemini/settings.json": "// none\n{}\n", ".agents/x": "",
		},
	} {
		for _, program := range []string{"artifactfs", "'/opt/my tools/artifactfs'"} {
			dir := repository(t, files)
			before := filesIn(t, dir)
			for range 2 {
				for _, a := range Agents() {
					for _, p := range Parts() {
						c, err := InstallPart(dir, a, p, program)
						if ok, hasErr := Has(dir, a, p); !ok || err != nil || hasErr != nil || c.Kept {
							t.Errorf("%s: install %s of %s: %+v, error %v, installed %v, error %v", name, p, a, c, err, ok, hasErr)
						}
					}
				}
			}
			status, err := git(dir, "status", "--porcelain", "--untracked-files=all")
			for line := range strings.Lines(status) {
				name := strings.TrimPrefix(strings.TrimSpace(line), "?? ")
				if _, ok := files[name]; !ok && !slices.Contains(shared, name) || err != nil {
					t.Errorf("%s: git status after all installs: %s, error %v", name, line, err)
				}
			}
			for _, a := range Agents() {
				for _, p := range []Part{Skill, Tools, Hooks} {
					if _, err := UninstallPart(dir, a, p); err != nil {
						t.Errorf("%s: uninstall %s of %s: %v", name, p, a, err)
					}
				}
				if ok, _ := Has(dir, Copilot, Tools); a == Claude && !ok {
					t.Errorf("%s: uninstall for claude has removed the tools of copilot", name)
				}
			}
			after := filesIn(t, dir)
			for path, text := range before {
				if after[path] != text {
					t.Errorf("%s: after the uninstall %s is\n%s\nwant\n%s", name, path, after[path], text)
				}
			}
			for path := range after {
				if _, ok := before[path]; !ok {
					t.Errorf("%s: uninstall has left %s", name, path)
				}
			}
		}
	}
}

// TestTrackedEmptyFilesStay checks that a file that git tracks is there again, with the same bytes, after the removal of
// what was added to it, also if it is empty.
func TestTrackedEmptyFilesStay(t *testing.T) {
	dir := repository(t, map[string]string{".codex/config.toml": "", ".mcp.json": "", "opencode.json": emptySettings})
	if _, err := git(dir, "add", "-A"); err != nil {
		t.Fatal(err)
	}
	for _, a := range []Agent{Codex, Claude, OpenCode} {
		if _, err := InstallPart(dir, a, Tools, "artifactfs"); err != nil {
			t.Fatal(err)
		}
		if c, err := UninstallPart(dir, a, Tools); err != nil || !c.Changed || !c.Tracked {
			t.Errorf("uninstall of %s: got %+v, error %v", a, c, err)
		}
	}
	if changed, err := git(dir, "diff", "--name-status"); err != nil || changed != "" {
		t.Errorf("changes after the removals: got %s, error %v", changed, err)
	}
}

// TestExcludeWithoutANewline checks that info/exclude gets its bytes back, also if its last line has no newline, in
// whatever order the agents are removed, and that a line which was added since stays.
func TestExcludeWithoutANewline(t *testing.T) {
	for _, order := range [][]Agent{{Claude, Cursor, Codex}, {Codex, Cursor, Claude}, {Cursor, Claude, Codex}} {
		for _, since := range []string{"", "mine\n"} {
			dir := repository(t, map[string]string{".git/info/exclude": "# none\nfoo"})
			for _, a := range []Agent{Claude, Cursor, Codex} {
				if _, err := Install(dir, a, "artifactfs"); err != nil {
					t.Fatal(err)
				}
			}
			path, want := filepath.Join(dir, ".git", "info", "exclude"), "# none\nfoo"
			text, err := os.ReadFile(path)
			if since != "" {
				want += "\n" + since
			}
			if err = errors.Join(err, os.WriteFile(path, append(text, since...), 0o644)); err != nil {
				t.Fatal(err)
			}
			for _, a := range order {
				if _, err := Uninstall(dir, a); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("info/exclude after removals in the order %v: got %q, %v, want %q", order, got, err, want)
			}
		}
	}
}

// TestSharedFilesAreNotExcluded checks that git sees the files of a project to which its users add entries, and that a
// file in which the entries of a user stay is no longer excluded.
func TestSharedFilesAreNotExcluded(t *testing.T) {
	dir := repository(t, nil)
	for _, a := range []Agent{Claude, Codex, Cursor, OpenCode} {
		if _, err := InstallPart(dir, a, Tools, "artifactfs"); err != nil {
			t.Fatal(err)
		}
		if _, err := git(dir, "check-ignore", "-q", a.piece(Tools).path); err == nil {
			t.Errorf("git ignores %s", a.piece(Tools).path)
		}
	}
	change, err := Install(dir, Gemini, "artifactfs")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(change.Path)
	if err == nil {
		err = os.WriteFile(change.Path, []byte(strings.Replace(string(text), "{", `{"model": "m",`, 1)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Uninstall(dir, Gemini); err != nil {
		t.Fatal(err)
	}
	if status, err := git(dir, "status", "--porcelain", "--untracked-files=all"); !strings.Contains(status,
		".gemini/settings.json") || err != nil {
		t.Errorf("git status after the uninstall: got %q, error %v", status, err)
	}
}

// TestInstallApprovesNoServer checks that claude asks its user before it starts what .mcp.json names: the file may be
// that of another branch.
func TestInstallApprovesNoServer(t *testing.T) {
	dir := repository(t, nil)
	for _, p := range Parts() {
		if _, err := InstallPart(dir, Claude, p, "artifactfs"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, configurations[Claude].path))
	if err != nil || strings.Contains(strings.ToLower(string(text)), "mcp") {
		t.Errorf("settings of claude: got %s, error %v", text, err)
	}
}

// TestServersRunTheTools checks the entries that each agent reads.
func TestServersRunTheTools(t *testing.T) {
	for _, program := range []string{"artifactfs", "'/opt/it'\\''s/artifactfs'"} {
		dir := repository(t, nil)
		for _, a := range Agents() {
			if _, err := InstallPart(dir, a, Tools, program); err != nil {
				t.Fatal(err)
			}
		}
		type entry struct {
			Command any
			Args    []string
		}
		all := map[string]entry{}
		for path, object := range map[string]string{".mcp.json": "mcpServers", ".cursor/mcp.json": "mcpServers",
			".gemini/settings.json": "mcpServers", "opencode.json": "mcp"} {
			var file map[string]map[string]entry
			text, err := os.ReadFile(filepath.Join(dir, path))
			if err == nil {
				err = json.Unmarshal(text, &file)
			}
			if err != nil {
				t.Fatal(err)
			}
			all[path] = file[object]["artifactfs"]
		}
		table, err := os.ReadFile(filepath.Join(dir, ".codex/config.toml"))
		var codex entry
		lines := strings.Split(string(table), "\n")
		if err != nil || len(lines) != 6 || lines[1] != "[mcp_servers.artifactfs]" ||
			json.Unmarshal([]byte(strings.TrimPrefix(lines[2], "command = ")), &codex.Command) != nil ||
			json.Unmarshal([]byte(strings.TrimPrefix(lines[3], "args = ")), &codex.Args) != nil {
			t.Fatalf("configuration of codex: got %q, error %v", table, err)
		}
		all["codex"] = codex
		for path, e := range all {
			var argv []string
			switch c := e.Command.(type) {
			case string:
				argv = append([]string{c}, e.Args...)
			case []any:
				for _, word := range c {
					argv = append(argv, word.(string))
				}
			}
			want := []string{"artifactfs", "mcp"}
			if program != "artifactfs" {
				want = []string{"sh", "-c", "exec " + program + ` mcp "$@"`, "artifactfs"}
			}
			if path == ".cursor/mcp.json" {
				want = append(want, "${workspaceFolder}")
			}
			if strings.Join(argv, "\x00") != strings.Join(want, "\x00") {
				t.Errorf("server in %s: got %q, want %q", path, argv, want)
			}
		}
	}
}

// TestEntriesOfTheUserStay checks that an entry with the name of the tools, and a skill, that the user has made are
// neither changed nor removed.
func TestEntriesOfTheUserStay(t *testing.T) {
	files := map[string]string{
		".mcp.json":                          `{"mcpServers":{"artifactfs":{"command":"artifactfs","args":["mcp","/srv/app"]}}}`,
		".cursor/mcp.json":                   `{"mcpServers":{"artifactfs":{"url":"http://127.0.0.1/mcp"}}}`,
		".codex/config.toml":                 "mcp_servers.artifactfs.command = \"x\"\n",
		"opencode.json":                      `{"mcp":{"artifactfs":{"type":"local","command":["sh","-c","artifactfs mcp"]}}}`,
		".gemini/settings.json":              `{"mcpServers":{"artifactfs":{"command":"other","args":["mcp"]}}}`,
		".claude/skills/artifactfs/SKILL.md": "mine\n",
	}
	dir := repository(t, files)
	before := filesIn(t, dir)
	for _, a := range Agents() {
		change, err := InstallPart(dir, a, Tools, "artifactfs")
		if !change.Kept || change.Changed || err != nil {
			t.Errorf("tools of %s beside those of the user: got %+v, error %v", a, change, err)
		}
		if _, err := UninstallPart(dir, a, Tools); err != nil {
			t.Error(err)
		}
	}
	change, err := InstallPart(dir, Claude, Skill, "artifactfs")
	if _, removal := UninstallPart(dir, Claude, Skill); !change.Kept || err != nil || removal != nil ||
		!Foreign(dir, Claude, Skill) || Foreign(dir, Codex, Skill) {
		t.Errorf("skill beside that of the user: got %+v, error %v, %v", change, err, removal)
	}
	for path, text := range filesIn(t, dir) {
		if text != before[path] {
			t.Errorf("file %s: got %s, want %s", path, text, before[path])
		}
	}
	for object, entries := range map[string][]string{
		"mcpServers": {`{"type":"stdio","command":"artifactfs","args":["mcp"],"env":{"ARTIFACTFS_STATE":"/x"}}`,
			`{"command":"artifactfs","args":["mcp"],"env":{}}`, `{"command":["artifactfs","mcp"],"args":[]}`,
			`{"command":"artifactfs","args":["mcp"],"command":"artifactfs"}`},
		"mcp": {`{"type":"local","command":["artifactfs","mcp"],"enabled":false}`,
			`{"type":"remote","command":["artifactfs","mcp"]}`},
	} {
		for _, entry := range entries {
			text := []byte(`{"` + object + `":{"artifactfs":` + entry + `}}`)
			if rest, n, err := cutEntry(text, object, isServer); n != 0 || !bytes.Equal(rest, text) || err != nil {
				t.Errorf("entry that is different from that of install: removed from %s: %s, error %v", text, rest, err)
			}
		}
	}
	for text, kept := range map[string]bool{
		"[mcp_servers.artifactfs]\ncommand = \"x\"\n": true, "[ 'mcp_servers' . \"artifactfs\".env]\nA = \"1\"\n": true,
		"[mcp_servers]\nartifactfs = {command = \"x\"}\n": true, "[mcp_servers]\nother.command = \"x\"\n": false,
		"[mcp_servers.artifactfs2]\ncommand = \"x\"\n": false, "# [mcp_servers.artifactfs]\n": false,
	} {
		if _, err := putTable([]byte(text), "artifactfs"); errors.Is(err, errKept) != kept || !kept && err != nil {
			t.Errorf("table in %q: got error %v, want kept %v", text, err, kept)
		}
	}
}

// TestEditedTableStays checks that a table of the tools to which somebody has added something is kept.
func TestEditedTableStays(t *testing.T) {
	table, err := putTable([]byte("a = 1\n"), "artifactfs")
	if err != nil {
		t.Fatal(err)
	}
	for old, with := range map[string]string{
		"args =":                 "env = {A = \"1\"}\nargs =",
		tableEnd:                 "\n[mcp_servers.foo]\ncommand = \"foo\"\n" + tableEnd,
		"[\"mcp\"]":              "[\"mcp\", \"/srv/app\"]",
		"command = \"artifactfs": "command = \"other",
		"\n" + tableEnd:          "\n" + tableEnd + "\n# slow\nstartup_timeout_sec = 20\n",
	} {
		edited := strings.Replace(string(table), old, with, 1)
		if rest, n, err := cutTable([]byte(edited)); n != 0 || string(rest) != edited || err != nil {
			t.Errorf("table that was edited: removed from\n%s\n%s, error %v", edited, rest, err)
		}
		if after, err := putTable([]byte(edited), "artifactfs"); !errors.Is(err, errKept) {
			t.Errorf("install over a table that was edited: got error %v and\n%s", err, after)
		}
	}
	after := string(table) + "\n# other\n[b]\nc = 1\n"
	if rest, n, err := cutTable([]byte(after)); n != 1 || string(rest) != "a = 1\n\n# other\n[b]\nc = 1\n" || err != nil {
		t.Errorf("table before another one: got %q, error %v", rest, err)
	}
}

// TestFilesOfTheUserStay checks that install and uninstall keep a skill and a plugin that somebody has edited, and that
// uninstall removes no file that git tracks, and no link.
func TestFilesOfTheUserStay(t *testing.T) {
	for a, p := range map[Agent]Part{Codex: Skill, OpenCode: Hooks} {
		for _, edit := range []func(string) string{
			func(text string) string { return text + "\nmine\n" },
			func(text string) string { return "mine\n" + text },
			func(text string) string { return strings.Replace(text, "checkpoint", "mine", 1) },
		} {
			dir := repository(t, nil)
			change, err := InstallPart(dir, a, p, "artifactfs")
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(change.Path)
			if err != nil {
				t.Fatal(err)
			}
			edited := strings.Replace(edit(string(text)), "timeout = 15000", "timeout = 1", 1)
			if err := os.WriteFile(change.Path, []byte(edited), 0o644); err != nil {
				t.Fatal(err)
			}
			if change, err := InstallPart(dir, a, p, "other/artifactfs"); change.Changed || p == Skill && !change.Kept {
				t.Errorf("install over an edited file of %s: got %+v, error %v", a, change, err)
			}
			if change, err := UninstallPart(dir, a, p); change.Changed || !change.Kept || err != nil {
				t.Errorf("uninstall of an edited file of %s: got %+v, error %v", a, change, err)
			}
			if after, err := os.ReadFile(change.Path); string(after) != edited || err != nil {
				t.Errorf("edited file of %s: got %q, error %v", a, after, err)
			}
		}
	}
	for name, prepare := range map[string]string{
		"tracked": "printf '{\n}\n' >.mcp.json && git add .mcp.json",
		"a link":  "mkdir x && printf '{\n}\n' >x/mcp.json && ln -s x/mcp.json .mcp.json",
	} {
		dir := repository(t, nil)
		cmd := exec.Command("sh", "-c", prepare)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", prepare, err, out)
		}
		_, err := InstallPart(dir, Copilot, Tools, "artifactfs")
		_, removal := UninstallPart(dir, Copilot, Tools)
		text, reading := os.ReadFile(filepath.Join(dir, ".mcp.json"))
		if err := errors.Join(err, removal, reading); string(text) != "{\n}\n" || err != nil {
			t.Errorf("file that is %s after the uninstall: got %q, error %v", name, text, err)
		}
		if info, err := os.Lstat(filepath.Join(dir, ".mcp.json")); err != nil || name == "a link" && info.Mode().IsRegular() {
			t.Errorf("file that was %s: got %v, error %v", name, info, err)
		}
	}
}

// TestFilesThatCannotBeEdited checks that a file in which the entry would be wrong stays as it is.
func TestFilesThatCannotBeEdited(t *testing.T) {
	for path, texts := range map[string][]string{
		".mcp.json":          {"[]", "{", `{"mcpServers":[]}`, `{"mcpServers":1}`, "{} /*", `{"a":1,,}`, "{,}"},
		".codex/config.toml": {"mcp_servers = {a = {command = \"x\"}}\n", "# artifactfs begin\n[a]\n"},
	} {
		a := map[string]Agent{".mcp.json": Copilot, ".codex/config.toml": Codex}[path]
		for _, text := range texts {
			dir := repository(t, map[string]string{path: text})
			if _, err := InstallPart(dir, a, Tools, "artifactfs"); err == nil {
				t.Errorf("install into %q succeeded", text)
			}
			if got, err := os.ReadFile(filepath.Join(dir, path)); string(got) != text || err != nil {
				t.Errorf("file %s after a failed install: got %q, error %v", path, got, err)
			}
		}
	}
	dir := repository(t, map[string]string{configurations[OpenCode].path: "mine\n"})
	if _, err := Install(dir, OpenCode, "artifactfs"); !errors.Is(err, errForeign) {
		t.Errorf("install of the plugin over another file: got %v", err)
	}
}

// TestSkillIsSmall checks the size of the skill, which takes a part of the agent's context, and its header.
func TestSkillIsSmall(t *testing.T) {
	if len(skill) > 3<<10 || !strings.HasPrefix(skill, "---\nname: artifactfs\ndescription: ") ||
		!strings.Contains(skill, "\n---\n<!-- written by artifactfs agent install -->\n") {
		t.Errorf("skill has %d bytes, and begins with %.60q", len(skill), skill)
	}
}

// FuzzComments checks that the positions in a text with comments are those in the text.
func FuzzComments(f *testing.F) {
	for _, seed := range []string{`{"a":1, // x` + "\n}", `{"a":"//","b":[1,],/**/}`, `{"a":"\"/*"}`, "{/*", `{"a":{}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if plain := withoutComments([]byte(text)); len(plain) != len(text) || json.Valid([]byte(text)) &&
			string(plain) != text {
			t.Fatalf("text without comments: got %q of %q", plain, text)
		}
		after, err := insert([]byte(text), []string{"mcpServers"}, false,
			`"artifactfs": {"command": "artifactfs", "args": ["mcp"]}`)
		if err != nil {
			return
		}
		rest, n, err := cutEntry(after, "mcpServers", isServer)
		_, had, _ := cutEntry([]byte(text), "mcpServers", isServer)
		if err != nil || n != had+1 {
			t.Fatalf("removed %d entries, had %d, error %v, from %q", n, had, err, after)
		}
		if had == 0 && string(rest) != text && !strings.Contains(text, "mcpServers") {
			t.Errorf("text after the removal: got %q, want %q", rest, text)
		}
	})
}
