package agenthook

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/lazy"
)

// Gemini CLI stores a conversation in .gemini/tmp/PROJECT/chats/session-TIME-ID.jsonl below the home directory, where
// ID is the first part of its id, and those of its sub-agents in chats/ID/*.jsonl, where ID is the whole id. PROJECT is
// a name that it has given to the working directory. The format is that of versions 0.40 to 0.61; earlier ones write a
// file session-TIME-ID.json again for each message, which is not stored.

// geminiPrefix is the beginning of the names of files with conversations.
const geminiPrefix = "session-"

// geminiMark is the name of the file with the working directory that a directory of gemini belongs to.
const geminiMark = ".project_root"

// geminiHead is the first line of a file. Gemini loads no file without it.
type geminiHead struct {
	Session string `json:"sessionId"`
	Hash    string `json:"projectHash"` // geminiHash of the working directory
}

// geminiHash returns the hash by which gemini names a working directory in its files.
func geminiHash(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:])
}

// withGeminiHead returns the lines of the conversation called session with a first line, if that is missing because it
// was erased or has expired.
func withGeminiHead(lines [][]byte, session string) [][]byte {
	var head geminiHead
	if json.Unmarshal(lines[0], &head) == nil && head.Session == session && head.Hash != "" {
		return lines
	}
	first, _ := json.Marshal(geminiHead{session, geminiHash("")}) // editDirs replaces the hash
	return slices.Insert(lines, 0, first)
}

// geminiChats returns the directory in which gemini looks for the conversations of the working directory dir. home is
// the directory .gemini. If gemini has no name for dir yet, geminiChats makes a directory with a mark, as gemini does;
// gemini then adds the name to its list itself.
func geminiChats(home, dir string) (string, error) {
	bases := []string{filepath.Join(home, "tmp"), filepath.Join(home, "history")}
	var list struct {
		Projects map[string]string `json:"projects"`
	}
	text, err := disk.ReadRegular(filepath.Join(home, "projects.json"), 16<<20)
	if err := missingIsFine(err); err != nil {
		return "", err
	}
	_ = json.Unmarshal(text, &list) // gemini itself replaces a list that it cannot read
	var names []string              // those that gemini has given to dir
	if name := list.Projects[dir]; name != "" {
		names = append(names, name)
		delete(list.Projects, dir)
	}
	for _, base := range bases {
		entries, _ := os.ReadDir(base) // there may be none
		for _, e := range entries {
			if owner, _ := geminiOwner(base, e.Name()); owner == dir {
				names = append(names, e.Name())
			}
		}
	}
	used := slices.Collect(maps.Values(list.Projects))
	for i := range 10_000 {
		name := geminiName(dir, i-len(names))
		if i < len(names) {
			name = names[i]
		} else if slices.Contains(used, name) {
			continue
		}
		if ok, err := claimGemini(bases, name, dir); ok || err != nil {
			return filepath.Join(bases[0], name, "chats"), err
		}
	}
	return "", errors.New("choose a directory of gemini: all names are in use")
}

// geminiName returns the name that gemini gives to the working directory dir if n other directories have the same one.
func geminiName(dir string, n int) string {
	name := notInName().ReplaceAllString(strings.ToLower(filepath.Base(dir)), "-")
	if name = strings.Trim(name, "-"); name == "" {
		name = "project"
	}
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, n)
}

var notInName, geminiNames = lazy.Regexp(`[^a-z0-9]+`), lazy.Regexp(`\A[a-z0-9-]+\z`)

// geminiOwner returns the working directory that a directory of gemini belongs to; "" if it has no mark.
func geminiOwner(base, name string) (string, error) {
	owner, err := disk.ReadRegular(filepath.Join(base, name, geminiMark), 64<<10)
	return strings.TrimSpace(string(owner)), missingIsFine(err)
}

// claimGemini makes the directory called name belong to the working directory dir. It returns false if the directory
// belongs to another one.
func claimGemini(bases []string, name, dir string) (bool, error) {
	if !geminiNames().MatchString(name) {
		return false, nil
	}
	var owner string
	for _, base := range slices.Backward(bases) {
		var err error
		if owner, err = geminiOwner(base, name); err != nil || owner != "" && owner != dir {
			return false, err
		}
	}
	if owner == dir {
		return true, nil
	}
	if err := os.MkdirAll(filepath.Join(bases[0], name), 0o700); err != nil {
		return false, err
	}
	f, err := os.OpenFile(filepath.Join(bases[0], name, geminiMark), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil // another program has just claimed it
	}
	if err != nil {
		return false, err
	}
	_, err = f.WriteString(dir)
	return true, errors.Join(err, f.Close())
}
