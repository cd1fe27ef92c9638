package agenthook

import (
	"cmp"
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// belongs reports whether the conversation of an event has begun in the mount at root. An agent that has begun
// elsewhere and has changed into the mount may have the contents of other projects in its conversation.
func belongs(e Event, home, root string, inside func(dir string) bool) bool {
	f, err := disk.OpenRegular(e.File, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	d := json.NewDecoder(io.LimitReader(f, maxMemoryLine))
	for {
		var v struct {
			Dir     string          `json:"cwd"`
			Payload json.RawMessage `json:"payload"`
		}
		if d.Decode(&v) != nil { // the first lines of claude may name no directory
			return e.Agent == Claude && filepath.Base(home) == slug(root)
		}
		var p struct {
			Dir string `json:"cwd"`
		}
		_ = json.Unmarshal(v.Payload, &p) // claude has none, and codex not always an object
		if dir := cmp.Or(v.Dir, p.Dir); dir != "" {
			return inside(dir)
		}
	}
}

// memoryHome returns the directory to which the names of memoryNames are relative, and the conversation, of the file in
// which an agent stores a conversation. It returns "" if the file is another one.
func memoryHome(a Agent, file string) (home, conversation string) {
	home = filepath.Dir(file)
	if a == Codex {
		home = filepath.Dir(filepath.Dir(filepath.Dir(home)))
	}
	name, err := filepath.Rel(home, file)
	if err != nil || !filepath.IsAbs(file) || memoryNames[a] == nil {
		return "", ""
	}
	m := memoryNames[a].FindStringSubmatch(name)
	if m == nil {
		return "", ""
	}
	return home, m[1]
}

// memoryFilesIn returns the names of the files of a conversation, the file of the event first.
func memoryFilesIn(home string, a Agent, conversation, file string) []string {
	first, _ := filepath.Rel(home, file)
	names := []string{first}
	if a != Claude {
		return names
	}
	for _, dir := range []string{conversation + "/subagents", conversation + "/tool-results"} {
		files, _ := os.ReadDir(filepath.Join(home, dir)) // there is often none
		for _, f := range files {
			if name := dir + "/" + f.Name(); f.Type().IsRegular() && memoryNames[a].MatchString(name) {
				names = append(names, name)
			}
		}
	}
	return names
}
