package convert

import (
	"encoding/hex"
	"strings"
	"testing"
)

func TestLFSPointer(t *testing.T) {
	oid := strings.Repeat("0123456789abcdef", 4)
	valid := "version https://git-lfs.github.com/spec/v1\noid sha256:" + oid + "\nsize 12345\n"
	if sum, ok := LFSPointer([]byte(valid)); !ok || hex.EncodeToString(sum[:]) != oid {
		t.Errorf("pointer: got %x, %v", sum, ok)
	}
	for _, text := range []string{
		"", "no pointer\n", valid + "x", valid + strings.Repeat(" ", maxPointer),
		strings.Replace(valid, "oid", "ext-0-a sha256:"+oid+"\noid", 1),
		strings.Replace(valid, "0123", "x123", 1),
	} {
		if _, ok := LFSPointer([]byte(text)); ok {
			t.Errorf("accepts %q as a pointer", text)
		}
	}
}

func TestLeavesOutLFS(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "[lfs]\n\turl = https://example.com/lfs\n": false, "[extensions]\n\tobjectFormat = sha256\n": false,
		"[lfs]\n\tfetchExclude = *\n": true, "lfs.fetchinclude": true, "[lfs \"extension.caps\"]\n\tsmudge = x\n": true,
		"lfs.extension.caps.smudge": true,
	} {
		if got := LeavesOutLFS([]byte(text)); got != want {
			t.Errorf("LeavesOutLFS(%q): got %v", text, got)
		}
	}
}
