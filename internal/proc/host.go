package proc

import (
	"os"
	"strings"
)

// BootID returns the UUID of the current boot of the host (random(4)). Every boot of every host has a different UUID.
func BootID() (string, error) {
	text, err := os.ReadFile(Root + "sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// MachineID returns the 32 hexadecimal digits that identify the installation of the operating system (machine-id(5)).
// The result ok is false if the host has no such ID. Copies of an installation may have the same ID. According to the
// manual page, programs should show other parties a keyed hash of the ID and not the ID itself.
func MachineID() (id string, ok bool) {
	text, err := os.ReadFile("/etc/machine-id")
	id = strings.TrimSpace(string(text))
	// the file contains the word "uninitialized" until the first boot has set the ID
	return id, err == nil && len(id) == 32
}
