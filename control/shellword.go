package control

import "strings"

// ShellWord returns w quoted such that it can be copied into a shell command as one word.
func ShellWord(w string) string {
	if w != "" && !strings.ContainsFunc(w, func(r rune) bool { return !strings.ContainsRune(plainLetters, r) }) {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// plainLetters are the characters that have no special meaning in a shell.
const plainLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,"
