# Sourced by the job scripts of every scheduler, and by local.sh: words with a time, the site's settings, the program, the deck, containers.
# `here` is the folder of this file, `scheduler` who starts the job.

say() { printf '%(%F %T)T %s: %s\n' -1 "${scheduler,,}" "$*"; }  # by the shell alone: a scheduler may be ending what it starts
die() { say "$*" >&2; exit 6; }

# nap SECONDS, in a subshell alone: a sleep that ends with the shell that it is in.
nap() {
  sleep "$1" &
  trap "kill $! 2>/dev/null; exit" TERM
  wait $!
}

# load_site FOLDER: the settings that TESSERA_SITE names, else site.sh; of the folder where the job was submitted, else beside the script.
load_site() {
  local settings
  for settings in "$1" "$here"; do
    settings+=${TESSERA_SITE:+/site/$TESSERA_SITE.sh}
    [ -n "${TESSERA_SITE:-}" ] || settings+=/site.sh
    if [ -e "$settings" ]; then . "$settings"; return; fi
  done
  [ -z "${TESSERA_SITE:-}" ] ||
    die "TESSERA_SITE=$TESSERA_SITE names no site: $settings is missing. There are: $(cd "$here/site" 2>/dev/null && echo *.sh)"
}

# TESSERA names the program; else the one that these scripts were installed with; else the one on PATH; else the one built here. In a container
# it is what TESSERA names there, else the one on its PATH.
find_tessera() {
  local program installed=
  if [ -n "${TESSERA_CONTAINER:-}" ]; then echo "${TESSERA:-tessera}"; return; fi
  case $here in */share/tessera/*) installed=${here%/share/tessera/*}/bin/tessera ;; esac
  for program in "${TESSERA:-}" "$installed" "$(command -v tessera)" "$PWD/build/host/tessera"; do
    if [ -n "$program" ] && [ -x "$program" ]; then echo "$program"; return; fi
    [ -z "$program" ] || [ "$program" != "${TESSERA:-}" ] || die "TESSERA=$program is not a program that can be run"
  done
  die "found no tessera: set TESSERA to it, put it on PATH, or build it here with scripts/quickstart"
}

# find_deck DEFAULT: DECK, relative to the folder where the job was submitted; else the script's own.
find_deck() {
  local deck=${DECK:-$1}
  [ -n "${DECK:-}" ] || [ -r "$deck" ] || deck=$here/../$deck
  [ -r "$deck" ] || die "cannot read the deck $deck (DECK names it, relative to $PWD)"
  echo "$deck"
}

# enter_container [FOLDER...]: sets `around`, what stands before the program so that it runs in the image that TESSERA_CONTAINER names, with these folders
# besides its own; `container_options` of srun, for Pyxis; and `alone`, what stands before it for one process on this node. A .sif
# file is Apptainer's, with the node's GPUs where it has any; all else is Pyxis's, unless TESSERA_CONTAINER_BY says otherwise. TESSERA_MOUNTS=/data,/scratch
# are folders beside this one that it sees.
enter_container() {
  local image=${TESSERA_CONTAINER:-} by folder folders=("$PWD" "$@")
  around=() container_options=() alone=()
  [ -n "$image" ] || return 0
  case $image in *.sif) by=apptainer ;; *) by=pyxis ;; esac
  by=${TESSERA_CONTAINER_BY:-$by}
  [ -z "${TESSERA_MOUNTS:-}" ] || folders+=(${TESSERA_MOUNTS//,/ })
  case $by in
    apptainer)
      around=(apptainer exec --nv --pwd "$PWD")
      for folder in "${folders[@]}"; do around+=(--bind "$folder"); done
      around+=("$image")
      alone=("${around[@]}") ;;
    pyxis)
      [ "$scheduler" = Slurm ] || die "Pyxis is a part of Slurm: with $scheduler TESSERA_CONTAINER names a .sif file, for Apptainer"
      folder=$(printf ',%s:%s' $(for folder in "${folders[@]}"; do echo "$folder" "$folder"; done))
      container_options=(--container-image="$image" --container-mounts="${folder#,}" --container-workdir="$PWD")
      alone=(srun --overlap --nodes=1 --ntasks=1 --nodelist="${SLURMD_NODENAME:-$(hostname -s)}" "${container_options[@]}") ;;
    *) die "TESSERA_CONTAINER_BY=$by is neither pyxis nor apptainer" ;;
  esac
}
