package object

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// raw encodes a tree from the given texts, which may be invalid.
func raw(f Format, entries ...string) []byte {
	var b bytes.Buffer
	for i, e := range entries {
		b.WriteString(e)
		b.WriteByte(0)
		b.Write(bytes.Repeat([]byte{byte(i + 1)}, f.Size()))
	}
	return b.Bytes()
}

// TestParseTree parses trees that were written by git, with random entries in random order and names with arbitrary
// bytes.
func TestParseTree(t *testing.T) {
	for _, f := range formats {
		r := newRepo(t, f)
		rnd := rand.New(rand.NewPCG(5, 6))
		modes := map[Mode]string{ModeDir: "tree", ModeFile: "blob", ModeExec: "blob", ModeSymlink: "blob",
			ModeGitlink: "commit"}
		alphabet := "aab.-/\x01\x7f\xc3\xa9\xff 0~:\\\n\t\"" // '/' is removed below, so that some names are shorter
		for range 20 {
			want := map[string]TreeEntry{}
			for range rnd.IntN(60) {
				name := ""
				for len(name) < 1+rnd.IntN(6) {
					name += string(alphabet[rnd.IntN(len(alphabet))])
				}
				name = strings.ReplaceAll(name, "/", "")
				if name == "" || name == "." || name == ".." {
					name = strings.Repeat("n", MaxNameLen)
				}
				id, _ := Hash(f, Blob, []byte(name))
				mode := []Mode{ModeDir, ModeFile, ModeExec, ModeSymlink, ModeGitlink}[rnd.IntN(5)]
				want[name] = TreeEntry{name, mode, id}
			}
			var in strings.Builder
			for _, e := range want { // in the random order of a map
				fmt.Fprintf(&in, "%06o %s %s\t%s\x00", uint32(e.Mode), modes[e.Mode], e.ID, e.Name)
			}
			id := r.id([]byte(in.String()), "mktree", "-z", "--missing")
			content := r.git(nil, "cat-file", "tree", id.String())
			entries, err := ParseTree(f, []byte(content))
			if err != nil {
				t.Fatal(err)
			}
			var list strings.Builder
			for _, e := range entries {
				if want[e.Name] != e {
					t.Errorf("entry %q: got %v, want %v", e.Name, e, want[e.Name])
				}
				fmt.Fprintf(&list, "%06o %s %s\t%s\x00", uint32(e.Mode), modes[e.Mode], e.ID, e.Name)
			}
			if got := r.git(nil, "ls-tree", "-z", id.String()); got != list.String() || len(entries) != len(want) {
				t.Errorf("got %d entries\n%q\nwant\n%q", len(entries), list.String(), got)
			}
		}
	}
}

// judged lists trees that ParseTree and `git fsck` must both accept or both refuse.
var judged = map[string]struct {
	entries []string
	bad     bool
}{
	"empty":                    {nil, false},
	"plain":                    {[]string{"100644 a", "100755 b", "40000 c", "120000 d", "160000 e"}, false},
	"padded mode":              {[]string{"040000 c"}, false},
	"directory sorts with '/'": {[]string{"100644 a", "100644 a.b", "40000 c", "100644 c0"}, false},
	"file before its dir":      {[]string{"100644 a-", "40000 a", "100644 a0"}, false},
	"order":                    {[]string{"100644 b", "100644 a"}, true},
	"order of directories":     {[]string{"40000 a", "100644 a.b"}, true},
	"order of signed bytes":    {[]string{"100644 \xff", "100644 a"}, true},
	"bytes above 127":          {[]string{"100644 a", "100644 \xff"}, false},
	"duplicate":                {[]string{"100644 a", "100644 a"}, true},
	"duplicate directory":      {[]string{"40000 a", "40000 a"}, true},
	"file and directory":       {[]string{"100644 a", "40000 a"}, true},
	"file and directory apart": {[]string{"100644 a", "100644 a-", "100644 a.b", "40000 a"}, true},
	"dir apart in between":     {[]string{"100644 a", "40000 a-", "40000 a.b", "40000 a"}, true},
	"prefix is no duplicate":   {[]string{"100644 a", "40000 a-", "40000 a.b", "100644 aa"}, false},

	"no name":         {[]string{"100644 "}, true},
	"dot":             {[]string{"40000 ."}, true},
	"dot dot":         {[]string{"40000 .."}, true},
	"dot dot file":    {[]string{"100644 .."}, true},
	"three dots":      {[]string{"100644 ..."}, false},
	"slash":           {[]string{"100644 a/b"}, true},
	"slash first":     {[]string{"100644 /etc"}, true},
	".git":            {[]string{"40000 .git"}, true},
	".git file":       {[]string{"100644 .git"}, true},
	".git link":       {[]string{"120000 .git"}, true},
	".GIT":            {[]string{"40000 .GIT"}, true},
	".gIt":            {[]string{"40000 .gIt"}, true},
	"NTFS dot":        {[]string{"40000 .git."}, true},
	"NTFS space":      {[]string{"40000 .git "}, true},
	"NTFS many":       {[]string{"40000 .git. . .. "}, true},
	"NTFS short name": {[]string{"40000 git~1"}, true},
	"NTFS SHORT":      {[]string{"40000 GIT~1"}, true},
	"NTFS short dot":  {[]string{"40000 git~1. "}, true},
	"NTFS stream":     {[]string{"40000 .git::$INDEX_ALLOCATION"}, true},
	"NTFS short strm": {[]string{"40000 git~1:x"}, true},
	"NTFS stream dot": {[]string{"40000 .git . :x"}, true},
	"HFS joiner":      {[]string{"40000 .g\u200cit"}, true},
	"HFS last":        {[]string{"40000 .git\u200f"}, true},
	"HFS first":       {[]string{"40000 \ufeff.git"}, true},
	"HFS many":        {[]string{"40000 .\u202ag\u206fi\u206aT\u200d"}, true},
	".gitx":           {[]string{"40000 .gitx"}, false},
	".github":         {[]string{"40000 .github"}, false},
	".gi":             {[]string{"40000 .gi"}, false},
	"git":             {[]string{"40000 git"}, false},
	"git~2":           {[]string{"40000 git~2"}, false},
	"git~10":          {[]string{"40000 git~10"}, false},
	".gitattributes":  {[]string{"100644 .gitattributes"}, false},
	".git-x":          {[]string{"100644 .git-x"}, false},
	"x.git":           {[]string{"40000 x.git"}, false},
	"other space":     {[]string{"40000 .g\u00a0it"}, false},
	"HFS elsewhere":   {[]string{"100644 a\u200cb"}, false},

	"mode 0":          {[]string{"0 a"}, true},
	"mode of a fifo":  {[]string{"10000 a"}, true},
	"mode of a disk":  {[]string{"60000 a"}, true},
	"mode sticky":     {[]string{"101644 a"}, true},
	"mode directory":  {[]string{"40755 a"}, true},
	"mode of symlink": {[]string{"120777 a"}, true},
}

func TestParseTreeAgainstFsck(t *testing.T) {
	for _, f := range formats {
		r := newRepo(t, f)
		ids := map[string]string{}
		for name, j := range judged {
			content := raw(f, j.entries...)
			ids[r.id(content, "hash-object", "-t", "tree", "--literally", "-w", "--stdin").String()] = name
			entries, err := ParseTree(f, content)
			if (err != nil) != j.bad || err == nil && len(entries) != len(j.entries) {
				t.Errorf("tree %s: got %v, want refusal %v", name, err, j.bad)
			}
		}
		out, errs, _ := r.try(nil, "-c", "fsck.zeroPaddedFilemode=ignore", "fsck", "--strict", "--no-dangling")
		refused := map[string]bool{}
		for _, line := range strings.Split(out+errs, "\n") {
			for id, name := range ids {
				// The entries refer to objects that do not exist.
				if strings.Contains(line, " in tree "+id) && !strings.Contains(line, "broken links") {
					refused[name] = true
				}
			}
		}
		for name, j := range judged {
			if refused[name] != j.bad {
				t.Errorf("git fsck of tree %s: got refused %v, want %v", name, refused[name], j.bad)
			}
		}
	}
}

// TestParseTreeRefuses checks that ParseTree refuses trees that git accepts, or that cannot be passed to git.
func TestParseTreeRefuses(t *testing.T) {
	for _, f := range formats {
		good := raw(f, "100644 a", "40000 b")
		for i := range good {
			whole := i == 0 || i == len(raw(f, "100644 a"))
			if entries, err := ParseTree(f, good[:i]); (err == nil) != whole {
				t.Errorf("tree cut at byte %d: got %v, %v", i, entries, err)
			}
		}
		for name, content := range map[string][]byte{
			"long name":   raw(f, "100644 "+strings.Repeat("a", MaxNameLen+1)),
			"long mode":   raw(f, "0100644 a"),
			"no mode":     raw(f, " a"),
			"octal 8":     raw(f, "100648 a"),
			"signed mode": raw(f, "+40000 a"),
			"no space":    raw(f, "100644"),
			"null id":     append([]byte("100644 a\x00"), make([]byte, f.Size())...),
			"half an id":  good[:len(good)-1],
			"garbage":     append(bytes.Clone(good), 'x'),
			"other ids":   raw(formats[1-f], "100644 a", "100644 b"),
		} {
			if entries, err := ParseTree(f, content); err == nil {
				t.Errorf("parse a tree of invalid contents (%s): got %v, want an error", name, entries)
			}
		}
		old := raw(f, "100600 a", "100664 b", "100700 c")
		entries, err := ParseTree(f, old)
		if err != nil || len(entries) != 3 || entries[0].Mode != ModeFile || entries[1].Mode != ModeFile ||
			entries[2].Mode != ModeExec {
			t.Errorf("modes of old repositories: got %v, %v", entries, err)
		}
		if e, err := ParseTree(f, raw(f, "100644 "+strings.Repeat("a", MaxNameLen))); err != nil || len(e) != 1 {
			t.Errorf("entry with the longest name: got %v", err)
		}
	}
	if _, err := ParseTree(SHA1, make([]byte, MaxTreeSize+1)); err == nil {
		t.Error("a tree over the limit was accepted")
	}
}

// encode returns the encoded tree with the entries, as git writes it.
func encode(entries []TreeEntry) []byte {
	var b bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&b, "%o %s\x00%s", uint32(e.Mode), e.Name, e.ID.Bytes())
	}
	return b.Bytes()
}

func FuzzParseTree(f *testing.F) {
	for _, j := range judged {
		f.Add(raw(SHA1, j.entries...), false)
		f.Add(raw(SHA256, j.entries...), true)
	}
	f.Fuzz(func(t *testing.T, content []byte, long bool) {
		format := SHA1
		if long {
			format = SHA256
		}
		entries, err := ParseTree(format, content)
		if err != nil {
			return
		}
		names := map[string]bool{}
		for _, e := range entries {
			if e.Name == "" || e.Name == "." || e.Name == ".." || strings.EqualFold(e.Name, ".git") ||
				strings.ContainsAny(e.Name, "/\x00") {
				t.Fatalf("accepted the invalid name %q", e.Name)
			}
			if names[e.Name] {
				t.Fatalf("accepted the duplicate name %q", e.Name)
			}
			names[e.Name] = true
		}
		again, err := ParseTree(format, encode(entries))
		if err != nil || !slices.Equal(again, entries) {
			t.Fatalf("parse the tree that was encoded again: %v", err)
		}
	})
}
