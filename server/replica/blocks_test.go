package replica_test

import "golang.org/x/sys/unix"

// blocksOf returns the disk space of a file in bytes, or 0 if the file has further hard links.
func blocksOf(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
		return 0, nil
	}
	return st.Blocks * 512, nil
}
