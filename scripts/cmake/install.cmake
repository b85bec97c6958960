# cmake --install: the program, decks, job scripts, the script that draws a run, documents. Everything finds its neighbours from where it stands.
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # libraries of modules and of Spack, which the loader does not know

install(DIRECTORY inputs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera FILES_MATCHING PATTERN "*.toml")
install(FILES slurm/common.sh slurm/ends.sh slurm/start.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(FILES pbs/common.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/pbs)
# The settings of sites, once there, are the sites'.
install(CODE "
file(GLOB sites RELATIVE \"${PROJECT_SOURCE_DIR}\" \"${PROJECT_SOURCE_DIR}/slurm/site*.sh\" \"${PROJECT_SOURCE_DIR}/slurm/site/*.sh\"
  \"${PROJECT_SOURCE_DIR}/pbs/site*.sh\" \"${PROJECT_SOURCE_DIR}/pbs/site/*.sh\")
foreach(site IN LISTS sites)
  set(there \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/tessera/\${site}\")
  if(EXISTS \"\$ENV{DESTDIR}\${there}\")
    message(STATUS \"keeps \$ENV{DESTDIR}\${there}\")
  else()
    get_filename_component(folder \"\${there}\" DIRECTORY)
    file(INSTALL DESTINATION \"\${folder}\" TYPE FILE FILES \"${PROJECT_SOURCE_DIR}/\${site}\")
  endif()
endforeach()")
file(GLOB job_scripts CONFIGURE_DEPENDS slurm/train_*.sh)
install(PROGRAMS ${job_scripts} slurm/consolidate.sh slurm/finetune.sh slurm/local.sh slurm/train.sh slurm/preflight.sh slurm/sweep.sh
  DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
# What --help says, as a manual page and for shells. The program runs where it was built; elsewhere `tessera completion` makes them.
install(CODE "
set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
foreach(kind IN ITEMS man bash zsh fish)
  execute_process(COMMAND \"$<TARGET_FILE:tessera>\" completion \${kind} OUTPUT_VARIABLE text RESULT_VARIABLE status ERROR_QUIET)
  if(NOT status EQUAL 0)
    message(STATUS \"no manual page and no completions: the program does not run here. tessera completion makes them\")
    break()
  endif()
  set(man \"\${root}/${CMAKE_INSTALL_MANDIR}/man1/tessera.1\")
  set(bash \"\${root}/${CMAKE_INSTALL_DATADIR}/bash-completion/completions/tessera\")
  set(zsh \"\${root}/${CMAKE_INSTALL_DATADIR}/zsh/site-functions/_tessera\")
  set(fish \"\${root}/${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/tessera.fish\")
  message(STATUS \"Installing: \${\${kind}}\")
  file(WRITE \"\${\${kind}}\" \"\${text}\")
endforeach()")
install(PROGRAMS pbs/train.pbs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/pbs)
install(DIRECTORY slurm/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/slurm)
install(PROGRAMS scripts/plot_run DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/scripts)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.png")
